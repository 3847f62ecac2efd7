"""The Redis tier of a worker's KV cache: prefetch, write-behind and deletion over one cost gate."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from headrace.models.batch import KVFormat
from headrace.models.kv.gate import CostGate
from headrace.models.kv.known import KnownBlocks
from headrace.models.kv.metrics import KVMetrics
from headrace.models.kv.prefetch import Prefetcher
from headrace.models.kv.store import BlockStore
from headrace.models.kv.write_behind import Turn, WriteBehind
from headrace.models.request import KVBlock
from headrace.schemas.keys import Keys


class CachingEngine(Protocol):
    """What the tier needs of the engine (headrace.models.engine)."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def kv_format(self) -> KVFormat: ...

    def cached_tokens(self, prompt_ids: Sequence[int], tenant: str) -> int: ...

    def salt(self, tenant: str) -> bytes: ...

    def export_blocks(self, hashes: Sequence[bytes]) -> "Future[list[KVBlock | None]]": ...


class RedisTier:
    """KV state in Redis for one engine. Reading and writing have a connection and a thread each, so
    that a prefetch does not wait for a write.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        engine: CachingEngine,
        metrics: KVMetrics,
        *,
        ttl_s: int,
    ) -> None:
        self._gate = CostGate()
        known = KnownBlocks()
        reading, writing = (
            BlockStore(url, keys, engine.fingerprint, engine.kv_format) for _ in range(2)
        )
        self._prefetcher = Prefetcher(reading, engine, self._gate, known, metrics)
        self._writer = WriteBehind(writing, engine, self._gate, known, metrics, ttl_s=ttl_s)

    async def fetch(self, token_ids: Sequence[int], tenant: str) -> tuple[KVBlock, ...]:
        """See Prefetcher.fetch."""
        return await self._prefetcher.fetch(token_ids, tenant)

    def release(self, num_blocks: int) -> None:
        """See Prefetcher.release."""
        self._prefetcher.release(num_blocks)

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """The engine computed so many tokens of a prompt in this time."""
        self._gate.prefilled(num_tokens, seconds)

    def keep(self, turn: Turn) -> None:
        """See WriteBehind.keep."""
        self._writer.keep(turn)

    async def delete(self, turn: Turn) -> None:
        """See WriteBehind.delete."""
        await self._writer.delete(turn)

    async def run(self) -> None:
        """Write behind, for ever."""
        await self._writer.run()

    async def drain(self, running: Sequence[Turn], budget_s: float) -> None:
        """See WriteBehind.drain."""
        await self._writer.drain(running, budget_s)

    def close(self) -> None:
        """Nothing is read or written any more."""
        self._prefetcher.close()
        self._writer.close()
