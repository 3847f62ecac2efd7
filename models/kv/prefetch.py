"""Before prefill: the leading blocks of a prompt that are in Redis and not in this worker.

One connection on a thread of its own, so the event loop never waits for a value to come in.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.kv.breaker import Breaker
from headrace.models.kv.gate import CostGate, ProbeTimer
from headrace.models.kv.known import KnownBlocks
from headrace.models.kv.metrics import KVMetrics, Skipped, StoreError
from headrace.models.kv.store import BlockName, BlockStore, Fetched
from headrace.models.prefix import block_hashes
from headrace.models.request import KVBlock
from headrace.schemas.errors import UnavailableError

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 0.5
"""What a slow or absent Redis may cost a request, once. Those that wait for the same connection
count their waiting in.
"""

RECEIVE_S = 0.4
"""When the receiving stops: what has come by then is used."""

PLANNED_S = 0.2
"""No more is asked for than comes in this time at the measured bandwidth; the rest of the prompt is
computed.
"""

MAX_HELD_BYTES = 512 * 1024 * 1024
"""Fetched blocks that the engine has not taken over yet, of all requests together."""


class LocalCache(Protocol):
    """What the prefetch needs of the engine (headrace.models.engine)."""

    def cached_tokens(self, prompt_ids: Sequence[int], tenant: str) -> int: ...

    def salt(self, tenant: str) -> bytes: ...


class Prefetcher:
    """Fetches what pays, within FETCH_TIMEOUT_S. Everything that goes wrong is a miss."""

    def __init__(
        self,
        store: BlockStore,
        engine: LocalCache,
        gate: CostGate,
        known: KnownBlocks,
        metrics: KVMetrics,
    ) -> None:
        self._store, self._engine, self._gate = store, engine, gate
        self._known, self._metrics = known, metrics
        self._breaker, self._probe = Breaker(), ProbeTimer()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-kv-read")
        self._num_queued_bytes = 0
        self._num_held_bytes = 0

    async def fetch(self, token_ids: Sequence[int], tenant: str) -> tuple[KVBlock, ...]:
        """The blocks that follow the local ones, without a gap; `release` them afterwards.

        At least the last token is left for the engine to compute.
        Cancel: what was asked for is received to its end, or its deadline, and thrown away.
        """
        first = self._engine.cached_tokens(token_ids, tenant) // BLOCK_TOKENS
        num_blocks = self._num_worth_fetching((len(token_ids) - 1) // BLOCK_TOKENS - first)
        entered_s = time.monotonic()
        if num_blocks < 1:
            return ()
        if not self._breaker.try_enter(entered_s):
            self._metrics.skipped(Skipped.BREAKER)
            return ()
        num_bytes = num_blocks * self._store.value_bytes
        self._num_queued_bytes += num_bytes
        work = self._thread.submit(
            self._fetch_chain, token_ids, tenant, first, num_blocks, entered_s + RECEIVE_S
        )
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                found = await asyncio.wrap_future(work)
        except (UnavailableError, TimeoutError) as problem:
            logger.warning("KV blocks not fetched: %r", problem)
            self._breaker.failed(time.monotonic(), entered_s=entered_s)
            self._metrics.error(StoreError.UNAVAILABLE)
            return ()
        finally:
            self._num_queued_bytes -= num_bytes
        self._breaker.succeeded()
        return self._take(found)

    def release(self, num_blocks: int) -> None:
        """The engine has taken so many blocks over, or does not need them any more."""
        self._num_held_bytes -= num_blocks * self._store.value_bytes

    def close(self) -> None:
        """No further fetch; those under way end at their deadline, then the connection closes."""
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=False)

    def _num_worth_fetching(self, num_blocks: int) -> int:
        if num_blocks < 1:
            return 0
        block_bytes = self._store.value_bytes
        room = (MAX_HELD_BYTES - self._num_held_bytes - self._num_queued_bytes) // block_bytes
        if room < 1:
            self._metrics.skipped(Skipped.MEMORY)
            return 0
        in_time = self._gate.bandwidth_bytes_per_s * PLANNED_S - self._num_queued_bytes
        num_blocks = min(num_blocks, room, max(1, int(in_time / block_bytes)))
        num_bytes = num_blocks * block_bytes + self._num_queued_bytes
        if self._gate.pays(num_blocks * BLOCK_TOKENS, num_bytes):
            return num_blocks
        self._metrics.skipped(Skipped.COST)
        return 1 if self._probe.take(time.monotonic()) else 0

    def _fetch_chain(
        self, token_ids: Sequence[int], tenant: str, first: int, num_blocks: int, deadline_s: float
    ) -> Fetched:
        """On the thread: hashing a prompt of 100,000 tokens takes 10 ms."""
        end = (first + num_blocks) * BLOCK_TOKENS
        hashes = block_hashes(token_ids[:end], salt=self._engine.salt(tenant))
        chain = [
            BlockName(
                hashes[number],
                tuple(token_ids[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]),
            )
            for number in range(first, first + num_blocks)
        ]
        return self._store.fetch(chain, deadline_s=deadline_s)

    def _take(self, found: Fetched) -> tuple[KVBlock, ...]:
        now_s = time.monotonic()
        self._gate.moved(found.num_bytes, found.seconds)
        self._known.add((block.hash for block in found.blocks), now_s)
        if found.missing is not None:
            self._known.discard([found.missing])
        if found.deleted:
            self._known.discard(found.deleted)
            self._metrics.error(StoreError.CORRUPT)
        self._metrics.read(len(found.blocks), found.num_bytes)
        self._num_held_bytes += found.num_bytes
        return tuple(found.blocks)
