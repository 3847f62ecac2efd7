"""What the tests of the Redis tier share: an engine that has only blocks, and blocks."""

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import Future

from headrace.models.batch import BLOCK_TOKENS, KVFormat
from headrace.models.prefix import block_hashes, cache_salt
from headrace.models.request import KVBlock

FORMAT = KVFormat("test-format", 4096)
FINGERPRINT = "fp-1"


def tokens(num_blocks: int, *, seed: int = 0, more: int = 1) -> list[int]:
    """Ids of so many full blocks and a bit."""
    return [(seed * 7919 + n) % 500 for n in range(num_blocks * BLOCK_TOKENS + more)]


def data_of(block_hash: bytes, kv_format: KVFormat = FORMAT) -> bytes:
    """The content that a block must have, wherever it was."""
    return hashlib.shake_128(block_hash).digest(kv_format.block_bytes)


class BlockEngine:
    """Holds blocks, and computes none."""

    def __init__(
        self, *, fingerprint: str = FINGERPRINT, kv_format: KVFormat = FORMAT, num_local: int = 0
    ) -> None:
        self.fingerprint, self.kv_format = fingerprint, kv_format
        self.num_local_tokens = num_local * BLOCK_TOKENS
        self.exports: list[list[bytes]] = []
        self.evicted: set[bytes] = set()
        self.failure: BaseException | None = None
        self.exporting = asyncio.Event()
        self._ids: dict[bytes, tuple[int, ...]] = {}

    def cached_tokens(self, prompt_ids: Sequence[int], tenant: str) -> int:
        return min(self.num_local_tokens, len(prompt_ids) // BLOCK_TOKENS * BLOCK_TOKENS)

    def salt(self, tenant: str) -> bytes:
        return cache_salt(self.fingerprint, self.kv_format.name, tenant)

    def export_blocks(self, hashes: Sequence[bytes]) -> "Future[list[KVBlock | None]]":
        self.exports.append(list(hashes))
        self.exporting.set()
        done: Future[list[KVBlock | None]] = Future()
        if self.failure is not None:
            done.set_exception(self.failure)
        else:
            done.set_result([self._block(one) for one in hashes])
        return done

    def _block(self, block_hash: bytes) -> KVBlock | None:
        if block_hash in self.evicted:
            return None
        return KVBlock(block_hash, self._ids[block_hash], data_of(block_hash, self.kv_format))

    def learn(self, token_ids: Sequence[int], tenant: str = "default") -> list[bytes]:
        """Have the blocks of a sequence; their names."""
        hashes = block_hashes(token_ids, salt=self.salt(tenant))
        for number, one in enumerate(hashes):
            self._ids[one] = tuple(token_ids[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS])
        return hashes
