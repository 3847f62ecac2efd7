"""A conversation's blocks to Redis, behind everything that a reader waits for: after a turn, and as
an answer grows.

keep(turn) -> queue (the oldest is dropped) -> what Redis holds gets a new time to live ->
the rest is exported from the engine a few blocks at a time -> SET, at a bounded rate
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from headrace.models.kv.breaker import Breaker
from headrace.models.kv.gate import CostGate, ProbeTimer
from headrace.models.kv.known import KnownBlocks
from headrace.models.kv.metrics import KVMetrics, Skipped, StoreError
from headrace.models.kv.store import BlockStore
from headrace.models.prefix import block_hashes
from headrace.models.request import KVBlock
from headrace.schemas.errors import HeadraceError, UnavailableError

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_QUEUED_TURNS = 256
"""Conversations. Token ids only: some 400 KB of memory."""

SLICE_BLOCKS = 4
"""Exported and sent together: 6 MB of SmolLM2-135M in float32. The engine copies them between two
steps (1 ms), so they are few.
"""

WRITE_BYTES_PER_S = 64e6
"""While requests run: 3 % of a core for checksum and sending. 1,000 tokens of SmolLM2-135M in
float32 are written in 0.7 s.
"""

WRITE_TIMEOUT_S = 2.0
"""For one slice."""

MAX_TTL_S = 21_600
"""Six hours, or the session's time to live if that is less. Shorter than journals and
conversations, so that a Redis with the policy `volatile-ttl` drops KV state before these.
"""


class RefusedError(HeadraceError):
    """Redis answers, and does not take blocks: it is full, read-only or loading."""

    retriable = True

    def __init__(self, reply: bytes) -> None:
        super().__init__(reply)
        self.reply = reply

    def __str__(self) -> str:
        return self.reply.decode("utf-8", "replace")


class BlockSource(Protocol):
    """What writing needs of the engine (headrace.models.engine)."""

    def export_blocks(self, hashes: Sequence[bytes]) -> "Future[list[KVBlock | None]]": ...

    def salt(self, tenant: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """The tokens of a conversation up to now."""

    tenant: str
    session_id: str
    token_ids: tuple[int, ...]

    @property
    def conversation(self) -> tuple[str, str]:
        """Tenant and session."""
        return self.tenant, self.session_id


class WriteBehind:
    """Writes the full blocks of turns, in the order of `keep`, on a connection of its own."""

    def __init__(
        self,
        store: BlockStore,
        engine: BlockSource,
        gate: CostGate,
        known: KnownBlocks,
        metrics: KVMetrics,
        *,
        ttl_s: int,
    ) -> None:
        self._store, self._engine, self._gate = store, engine, gate
        self._known, self._metrics = known, metrics
        self._ttl_s = min(ttl_s, MAX_TTL_S)
        self._breaker, self._probe = Breaker(), ProbeTimer()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-kv-write")
        self._queue: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # one of a conversation
        self._something = asyncio.Event()
        self._active: list[Turn] = []

    def keep(self, turn: Turn) -> None:
        """Write this turn's blocks some time, in place of what waits of the same conversation.

        Delivery: at most once; a lost block is a miss.
        """
        self._queue[turn.conversation] = turn
        if len(self._queue) > MAX_QUEUED_TURNS:
            self._queue.popitem(last=False)
            self._metrics.skipped(Skipped.QUEUE_FULL)
        self._something.set()

    async def run(self) -> None:
        """Write what is kept, for ever. Cancel: safe; what is under way is sent, the rest lost."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._queue:
                _, turn = self._queue.popitem(last=False)
                await self._write(turn, bytes_per_s=WRITE_BYTES_PER_S)

    async def drain(self, running: Sequence[Turn], budget_s: float) -> None:
        """The engine has stopped: write the running turns, then the queue, as fast as it goes and
        for `budget_s` at the most.
        """
        turns = [*running, *self._queue.values()]
        self._queue.clear()
        try:
            async with asyncio.timeout(budget_s):
                for turn in turns:
                    await self._write(turn, bytes_per_s=None)
        except TimeoutError:
            self._metrics.skipped(Skipped.DRAIN)

    async def delete(self, turn: Turn) -> None:
        """Forget the conversation's blocks, here and in Redis; shared ones are just a miss to the
        others. Raises: UnavailableError.
        """
        self._queue.pop(turn.conversation, None)
        self._active = [one for one in self._active if one.conversation != turn.conversation]
        hashes = self._hashes(turn)
        self._known.discard(hashes)
        if hashes:  # behind a slice that is on its way: the thread does one after the other
            await self._on_thread(partial(self._store.delete, hashes, deadline_s=_deadline_s()))

    def close(self) -> None:
        """No further write; those under way end at their deadline, then the connection closes."""
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=False)

    def _hashes(self, turn: Turn) -> list[bytes]:
        return block_hashes(turn.token_ids, salt=self._engine.salt(turn.tenant))

    async def _write(self, turn: Turn, *, bytes_per_s: float | None) -> None:
        entered_s = time.monotonic()
        hashes = self._known.unknown(self._hashes(turn), entered_s)
        if not hashes:
            return
        if not self._pays() and not self._probe.take(entered_s):
            self._metrics.skipped(Skipped.COST)
        elif not self._breaker.try_enter(entered_s):
            self._metrics.skipped(Skipped.BREAKER)
        else:
            self._active.append(turn)
            try:
                await self._write_blocks(turn, hashes, bytes_per_s, entered_s)
            finally:
                self._active = [one for one in self._active if one is not turn]

    def _pays(self) -> bool:
        """Whether anybody would fetch it: with so many blocks that the latency does not count."""
        many = 1_000
        return self._gate.pays(many * self._store.block_tokens, many * self._store.value_bytes)

    async def _write_blocks(
        self, turn: Turn, hashes: Sequence[bytes], bytes_per_s: float | None, entered_s: float
    ) -> None:
        try:
            absent = await self._refresh(hashes)
            for start in range(0, len(absent), SLICE_BLOCKS):
                num_bytes = await self._send(turn, absent[start : start + SLICE_BLOCKS])
                if bytes_per_s is not None:
                    await asyncio.sleep(num_bytes / bytes_per_s)
        except (UnavailableError, RefusedError) as problem:
            self._breaker.failed(time.monotonic(), entered_s=entered_s)
            logger.warning("KV blocks not written: %s", problem)
            is_refusal = isinstance(problem, RefusedError)
            self._metrics.error(StoreError.REFUSED if is_refusal else StoreError.UNAVAILABLE)
        else:
            self._breaker.succeeded()

    async def _refresh(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Renew the time to live of what is there; returns what is not."""
        refresh = partial(self._store.refresh, hashes, ttl_s=self._ttl_s, deadline_s=_deadline_s())
        held = await self._on_thread(refresh)
        pairs = list(zip(hashes, held, strict=True))
        self._known.add((one for one, is_held in pairs if is_held), time.monotonic())
        return [one for one, is_held in pairs if not is_held]

    async def _send(self, turn: Turn, hashes: Sequence[bytes]) -> int:
        """Returns the bytes that were sent. Raises: UnavailableError, RefusedError."""
        try:
            exported = await asyncio.wrap_future(self._engine.export_blocks(hashes))
        except (MemoryError, RuntimeError) as problem:  # torch's errors are RuntimeErrors
            logger.warning("KV blocks could not be exported: %r", problem)
            self._metrics.error(StoreError.EXPORT)
            return 0
        blocks = [block for block in exported if block is not None]  # else: evicted meanwhile
        if not blocks or not any(one is turn for one in self._active):  # it was deleted meanwhile
            return 0
        started_s = time.monotonic()
        put = partial(self._store.put, blocks, ttl_s=self._ttl_s, deadline_s=_deadline_s())
        refusals = await self._on_thread(put)
        if refusals:
            raise RefusedError(refusals[0])
        num_bytes = len(blocks) * self._store.value_bytes
        self._gate.moved(num_bytes, time.monotonic() - started_s)
        self._known.add((block.hash for block in blocks), time.monotonic())
        self._metrics.written(len(blocks), num_bytes)
        return num_bytes

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(work))


def _deadline_s() -> float:
    return time.monotonic() + WRITE_TIMEOUT_S
