"""Which KV blocks are free, in use, or kept for their content: reference counts, the prefix cache,
and its least-recently-used order.

Plain Python over block ids; the memory itself is the runner's. One thread changes it; `find` may be
called by others too.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple


class CachedBlock(NamedTuple):
    """A block whose content is known."""

    block_id: int
    token_ids: tuple[int, ...]


class BlockPool:
    """The blocks of one runner.

    A block is free, or held (by one row or several), or cached and held by nobody. Cached ones are
    given away last, the one that was released longest ago first.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("the KV pool has no room for a single block")
        self.num_blocks = num_blocks
        self.num_evicted = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_holders = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, CachedBlock] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, held by nobody, oldest first

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can still give."""
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that rows hold."""
        return self.num_blocks - self.num_available

    def is_idle(self, block_id: int) -> bool:
        """Whether it is cached and held by nobody."""
        return block_id in self._idle

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> int | None:
        """The cached block of that name, if it has these tokens."""
        found = self._cached.get(block_hash)
        return found.block_id if found is not None and found.token_ids == token_ids else None

    def find_by_hash(self, block_hash: bytes) -> CachedBlock | None:
        """The cached block of that name."""
        return self._cached.get(block_hash)

    def allocate(self) -> int:
        """A block without content, held once.

        Raises: KeyError if every block is held: ask `num_available` first.
        """
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._idle.popitem(last=False)
            self._forget_content(block_id)
            self.num_evicted += 1
        self._num_holders[block_id] = 1
        return block_id

    def hold(self, block_id: int) -> None:
        """One holder more of a cached block."""
        if self._num_holders[block_id] == 0:
            del self._idle[block_id]
        self._num_holders[block_id] += 1

    def release(self, block_id: int) -> None:
        """One holder less; without any it is free, or kept if its content is known."""
        self._num_holders[block_id] -= 1
        if self._num_holders[block_id] == 0:
            if self._hashes[block_id] is None:
                self._free.append(block_id)
            else:
                self._idle[block_id] = None

    def register(self, block_id: int, block_hash: bytes, token_ids: tuple[int, ...]) -> None:
        """Say what a held block contains; where another one has that name already, that one
        stays.
        """
        if block_hash not in self._cached:
            self._cached[block_hash] = CachedBlock(block_id, token_ids)
            self._hashes[block_id] = block_hash

    def unregister(self, block_id: int) -> None:
        """Let nobody reuse the content of a held block; one that is not cached is left alone."""
        self._forget_content(block_id)

    def check_integrity(self, num_holders: Mapping[int, int]) -> None:
        """Raise AssertionError unless each block is in exactly one state, as often held as the rows
        say, and each name leads to a block that knows it.
        """
        held = {block_id for block_id, count in enumerate(self._num_holders) if count}
        states = [*self._free, *self._idle, *held]
        named = {h: block_id for block_id, h in enumerate(self._hashes) if h is not None}
        problems = [
            (sorted(states) != list(range(self.num_blocks)), "free + idle + held is not all"),
            (
                {block_id: self._num_holders[block_id] for block_id in held} != dict(num_holders),
                "the rows hold others",
            ),
            (
                named != {h: block.block_id for h, block in self._cached.items()},
                "a name leads to a block that does not know it",
            ),
            (any(self._hashes[block_id] is None for block_id in self._idle), "idle, not cached"),
            (any(self._hashes[block_id] is not None for block_id in self._free), "free, cached"),
        ]
        for broken, text in problems:
            if broken:
                raise AssertionError(text)

    def _forget_content(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._cached[block_hash]
            self._hashes[block_id] = None
