"""The blocks of one model in Redis: fetch a chain, write some, refresh or delete them.

Blocking; each call has a deadline on the monotonic clock. It does not decide whether a call pays.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.models.batch import KVFormat
from headrace.models.kv.buffers import BufferPool
from headrace.models.kv.codec import BlockCodec, BlockMismatchError
from headrace.models.kv.connection import Connection
from headrace.models.request import KVBlock
from headrace.schemas.errors import UnavailableError
from headrace.schemas.keys import Keys

MAX_BUFFERED_BYTES = 96 * 1024 * 1024
"""Kept for receiving: 2,000 tokens of SmolLM2-135M in float32."""

CONNECT_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block by its chain hash, and the tokens that it must hold."""

    hash: bytes
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Fetched:
    """The leading blocks of a chain that are there, and what became of the next one."""

    blocks: list[KVBlock] = field(default_factory=list)
    missing: bytes | None = None
    deleted: list[bytes] = field(default_factory=list)
    """The first one that was not the block it should be, and all behind it."""
    num_bytes: int = 0
    seconds: float = 0.0


class BlockStore:
    """One connection to Redis with the names, the format and the keys of one model's blocks."""

    def __init__(self, url: str, keys: Keys, fingerprint: str, kv_format: KVFormat) -> None:
        self._connection = Connection(url, connect_timeout_s=CONNECT_TIMEOUT_S)
        self._codec = BlockCodec(fingerprint, kv_format)
        self._buffers = BufferPool(self._codec.value_bytes, max_bytes=MAX_BUFFERED_BYTES)
        self.block_tokens = kv_format.block_tokens
        self._keys, self._names = keys, (fingerprint, kv_format.name)

    @property
    def value_bytes(self) -> int:
        """What one block takes in Redis."""
        return self._codec.value_bytes

    def fetch(self, chain: Sequence[BlockName], *, deadline_s: float) -> Fetched:
        """The leading blocks of `chain`; a gap ends it. One that is not the block it should be is
        deleted, and those behind it, which nobody can have looked at either; then it is a gap.

        The blocks' data lies in buffers that are used again when nobody refers to it any more.
        Raises: UnavailableError if none has come by the deadline.
        """
        found = Fetched()
        started_s = time.monotonic()

        def accept(position: int, value: memoryview | None) -> bool:
            name = chain[position]
            if value is None:
                found.missing = name.hash
                return False
            try:
                data = self._codec.decode(name.hash, name.token_ids, value)
            except BlockMismatchError:
                found.deleted = [one.hash for one in chain[position:]]
                return False
            found.blocks.append(KVBlock(name.hash, name.token_ids, data))
            return True

        keys = [self._key(name.hash) for name in chain]
        try:
            self._connection.get_while(keys, self._buffers, accept, deadline_s=deadline_s)
        except UnavailableError:
            if not found.blocks:
                raise
        found.seconds = time.monotonic() - started_s
        found.num_bytes = len(found.blocks) * self.value_bytes
        if found.deleted:
            self.delete(found.deleted, deadline_s=deadline_s)
        return found

    def put(self, blocks: Sequence[KVBlock], *, ttl_s: int, deadline_s: float) -> list[bytes]:
        """Write the blocks; the error replies of those that Redis did not take.

        Raises: UnavailableError. Delivery: idempotent, equal names have equal blocks.
        """
        values = [(self._key(b.hash), self._codec.header(b), b.data) for b in blocks]
        replies = self._connection.set_all(values, ttl_s=ttl_s, deadline_s=deadline_s)
        return [reply for reply in replies if reply != b"+OK"]

    def refresh(self, hashes: Sequence[bytes], *, ttl_s: int, deadline_s: float) -> list[bool]:
        """Let those that are there live `ttl_s` longer; which are. Raises: UnavailableError."""
        keys = [self._key(one) for one in hashes]
        return self._connection.expire_all(keys, ttl_s=ttl_s, deadline_s=deadline_s)

    def delete(self, hashes: Sequence[bytes], *, deadline_s: float) -> None:
        """Raises: UnavailableError."""
        self._connection.unlink_all([self._key(one) for one in hashes], deadline_s=deadline_s)

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()

    def _key(self, block_hash: bytes) -> str:
        return self._keys.kv_block(*self._names, block_hash)
