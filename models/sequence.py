"""The tokens of one generation, and how far their KV state is there: what the scheduler counts and
the runner computes. It knows no text and no sampling.
"""

from collections.abc import Sequence

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.prefix import next_hash
from headrace.models.request import KVBlock


class TokenSequence:
    """Prompt and generated tokens in one list that only grows.

    `num_computed` tokens are in the blocks `block_ids`, which hold nothing while it waits; both are
    the scheduler's to change. `root_hash` begins the chain of its blocks' names; without one it
    takes no part in the prefix cache. `cached_tokens` of the prompt were not computed, of these
    `fetched_tokens` came with it. `has_reused`: some of its blocks were computed by others;
    `started_over`: those turned out to be of no use. `runs_alone`: no other row is computed in
    the same step.
    """

    def __init__(
        self,
        key: str,
        prompt_ids: Sequence[int],
        *,
        max_total_tokens: int,
        priority: int = 0,
        root_hash: bytes | None = None,
        kv_blocks: Sequence[KVBlock] = (),
        runs_alone: bool = False,
    ) -> None:
        self.key, self.priority = key, priority
        self.runs_alone = runs_alone
        self.token_ids = list(prompt_ids)
        self.num_prompt_tokens = len(prompt_ids)
        self.max_total_tokens = max_total_tokens
        self.num_computed = 0
        self.block_ids: list[int] = []
        self.rank = (True, -priority, 0)
        self.num_preemptions = 0
        self.cached_tokens = 0
        self.fetched_tokens = 0
        self.has_reused = False
        self.started_over = False
        self.has_root = root_hash is not None
        self._hashes = [] if root_hash is None else [root_hash]
        self._fetched = {block.hash: block for block in kv_blocks}

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and generated."""
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose KV state is not there."""
        return len(self.token_ids) - self.num_computed

    def next_ids(self, num_tokens: int) -> list[int]:
        """The first `num_tokens` known tokens that are not computed yet."""
        return self.token_ids[self.num_computed : self.num_computed + num_tokens]

    def block_tokens(self, index: int) -> tuple[int, ...]:
        """The tokens of a full block."""
        return tuple(self.token_ids[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])

    def block_hash(self, index: int) -> bytes:
        """The name of a full block; needs a root."""
        hashes = self._hashes  # the root, then those of the blocks
        while len(hashes) <= index + 1:
            hashes.append(next_hash(hashes[-1], self.block_tokens(len(hashes) - 1)))
        return hashes[index + 1]

    def fetched_data(self, index: int) -> bytes | memoryview | None:
        """The content of a full block, if it came with the request."""
        block = self._fetched.get(self.block_hash(index)) if self._fetched else None
        if block is None or tuple(block.token_ids) != self.block_tokens(index):
            return None
        return block.data

    def drop_fetched(self) -> None:
        """Give the memory of what came with the request back."""
        self._fetched = {}
