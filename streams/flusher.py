"""Step 7: journal before publish. One owner task, one Redis round trip for many generations.

A first chunk and an ending go out at once. What comes between is gathered: all generations together
once an interval, which grows with their number (docs/decisions/007-windows-and-flush.md).

journaled    FLUSH  ok -> publish   absent -> larger attempt   fenced -> stop   away -> hold back
unjournaled  Redis away and lease held -> publish   Redis back -> ADOPT
adopting     ADOPT once more; ok -> publish   away -> hold back
lost         ADOPT under a larger attempt -> publish
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from headrace.schemas.errors import UnavailableError
from headrace.streams.generation import Flush, Generation, Standing
from headrace.streams.journal import FlushResult, Journal
from headrace.streams.ownership import Lease, Ownership
from headrace.streams.publisher import Publisher
from headrace.streams.redis_scripts import Scripts

RETRY_INTERVAL_S = 0.05
"""How often held-back text is tried again while Redis is away."""

CANCEL_POLL_INTERVAL_S = 0.5
"""How often the journals of generations that have nothing to flush are asked for a cancel."""

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.040, 0.100
"""Between two chunks of a stream: 25 a second look continuous, and 10 are still faster than
reading.
"""

INTERVAL_PER_GENERATION_S = 0.001


def flush_interval_s(num_generations: int) -> float:
    """How long text is gathered. A chunk costs broker, Redis and worker the same for one token as
    for ten, so the more streams share the machine, the more goes into one.
    """
    return min(MAX_INTERVAL_S, MIN_INTERVAL_S + INTERVAL_PER_GENERATION_S * num_generations)


class Flusher:
    """Journals and publishes what generations made. `touch` says that one has something new.

    `on_cancel(generation)`: its journal asks for its end. `on_fenced(generation)`: another owner
    has it.
    """

    def __init__(
        self,
        journal: Journal,
        scripts: Scripts,
        publisher: Publisher,
        ownership: Ownership,
        lease: Lease,
        *,
        on_cancel: Callable[[Generation], None],
        on_fenced: Callable[[Generation], None],
        interval_s: Callable[[int], float] = flush_interval_s,
    ) -> None:
        self._journal, self._scripts, self._publisher = journal, scripts, publisher
        self._ownership, self._lease = ownership, lease
        self._on_cancel, self._on_fenced = on_cancel, on_fenced
        self._interval_s = interval_s
        self._next_round_s = 0.0
        self._urgent: dict[str, None] = {}  # of the dirty ones, in order
        self._dirty: dict[str, Generation] = {}
        self._held: dict[str, Generation] = {}
        self._followed: set[str] = set()  # touched and not forgotten
        self._something = asyncio.Event()
        self._lock = asyncio.Lock()

    def touch(self, generation: Generation) -> None:
        """Something may have to be journaled or published."""
        self._followed.add(generation.key)
        was_idle = not self._dirty
        self._dirty[generation.key] = generation
        if _is_urgent(generation):
            self._urgent[generation.key] = None
            self._something.set()
        elif was_idle:
            self._something.set()  # the wait ends with the interval now

    def hurry(self) -> None:
        """Flush what was touched at once: another worker may go on with it soon."""
        self._urgent.update(dict.fromkeys(self._dirty))
        self._something.set()

    def _hold(self, generation: Generation) -> None:
        """Not now: try again in RETRY_INTERVAL_S, unless it was forgotten while Redis was asked."""
        if generation.key in self._followed:
            self._held[generation.key] = generation
            self._something.set()  # there is something to wait for again

    def forget(self, generation: Generation) -> None:
        """It was dropped: another worker goes on with it, and no round here takes it up again."""
        self._followed.discard(generation.key)
        self._dirty.pop(generation.key, None)
        self._urgent.pop(generation.key, None)
        self._held.pop(generation.key, None)

    @property
    def is_idle(self) -> bool:
        return not self._dirty and not self._held

    async def run(self) -> None:
        """Flush what is touched: at once where a reader waits for it, else with the next round.

        Cancel: what is not flushed is held back, not lost.
        """
        while True:
            with suppress(TimeoutError):  # time for the next round
                async with asyncio.timeout(self._wait_s()):
                    await self._something.wait()
            self._something.clear()
            if self._wait_s() == 0.0:
                await self.tick()
            elif self._urgent:
                await self._flush_urgent()

    def _wait_s(self) -> float | None:
        """Until the next round; None: there is nothing for one."""
        if self.is_idle:
            return None
        return max(0.0, self._next_round_s - time.monotonic())

    async def tick(self) -> None:
        """flush, then publish, for every generation that was touched or held."""
        async with self._lock:
            batch = list((self._held | self._dirty).values())
            self._held, self._dirty = {}, {}
            self._urgent.clear()
            started_s = time.monotonic()
            await self._flush(batch)
            interval_s = RETRY_INTERVAL_S if self._held else self._interval_s(len(batch))
            self._next_round_s = started_s + interval_s

    async def _flush_urgent(self) -> None:
        async with self._lock:
            batch = [self._dirty.pop(key) for key in self._urgent]
            self._urgent.clear()
            await self._flush(batch)

    async def _flush(self, batch: list[Generation]) -> None:
        await self._flush_journaled([g for g in batch if g.standing is Standing.JOURNALED])
        for generation in batch:
            if generation.standing is Standing.UNJOURNALED:
                await self._flush_unjournaled(generation)
            elif generation.standing is not Standing.JOURNALED and generation.key not in self._held:
                await self._adopt(generation)

    async def _flush_journaled(self, batch: list[Generation]) -> None:
        flushes: list[tuple[Generation, Flush]] = []
        for generation in batch:
            flush = generation.next_flush()
            if flush is not None:
                flushes.append((generation, flush))
            else:
                await self._publisher.publish(generation)
        if not flushes:
            return
        if not self._scripts.available.is_set():
            for generation, _ in flushes:
                self._hold(generation)
            return
        results = await self._journal.flush(flushes)
        for (generation, flush), result in zip(flushes, results, strict=True):
            await self._flushed(generation, flush, result)

    async def _flushed(self, generation: Generation, flush: Flush, result: FlushResult) -> None:
        if result in (FlushResult.OK, FlushResult.CANCELLED):
            generation.flushed(flush)
            await self._publisher.publish(generation)
            if result is FlushResult.CANCELLED and generation.ending is None:
                self._on_cancel(generation)
        elif result is FlushResult.ABSENT:
            await self.lose_journal(generation)
        elif result is FlushResult.FENCED:
            self._on_fenced(generation)
        else:
            self._hold(generation)

    async def _flush_unjournaled(self, generation: Generation) -> None:
        if self._scripts.available.is_set():
            await self._adopt(generation)
            return
        if self._leased(generation) and self._is_alone(generation):
            flush = generation.next_flush()
            if flush is not None:
                generation.flushed(flush)  # fixes the chunk's end
            await self._publisher.publish(generation)
        self._hold(generation)  # adopted as soon as Redis is back

    async def lose_journal(self, generation: Generation) -> None:
        """The journal is gone: under the lease, go on under a larger attempt."""
        if generation.key not in self._followed or not self._leased(generation):
            self._hold(generation)
            return
        try:
            token = await self._new_token(generation)
        except UnavailableError:
            self._hold(generation)
            return
        generation.restart(token)
        await self._adopt(generation)

    async def _adopt(self, generation: Generation) -> None:
        if generation.key not in self._followed:
            return
        if not self._scripts.available.is_set():
            self._hold(generation)
            return
        if generation.standing is Standing.LOST:
            entry = generation.restart(generation.token)
        else:
            entry = generation.adopt()
        may_create = self._leased(generation)
        if generation.standing is Standing.ADOPTING:
            may_create &= self._is_alone(generation)
        result = await self._journal.adopt(generation, entry, may_create=may_create)
        if result is FlushResult.FENCED:
            self._on_fenced(generation)
            return
        if (
            result is FlushResult.ABSENT
            and generation.standing is Standing.ADOPTING
            and not self._is_alone(generation)
        ):
            # another owner may have been in between, and its journal be lost: a larger attempt
            await self.lose_journal(generation)
            return
        if result not in (FlushResult.OK, FlushResult.CANCELLED):
            self._hold(generation)
            return
        generation.adopted(entry)
        await self._publisher.publish(generation)
        if result is FlushResult.CANCELLED and generation.ending is None:
            self._on_cancel(generation)

    async def _new_token(self, generation: Generation) -> int:
        """own: larger than any token this process knows, whatever clock and Redis have become."""
        partition = generation.decoded.record.partition
        above = max(generation.token, generation.attempt)
        least = self._ownership.next_token(partition, int(time.time() * 1000), above=above)
        (token,) = await self._journal.own([partition], least)
        self._ownership.renew(partition, token)
        return token

    def _is_alone(self, generation: Generation) -> bool:
        """Whether nobody else can have started it."""
        return self._ownership.came_since(generation.decoded.record)

    def _leased(self, generation: Generation) -> bool:
        owned = self._ownership.owns(generation.decoded.record.partition)
        return owned and self._lease.held(time.monotonic())


def _is_urgent(generation: Generation) -> bool:
    """Whether a reader waits: for a first chunk, an ending, or what an earlier owner journaled."""
    if generation.ending is not None:
        return True
    if not generation.bounds:
        return generation.streams
    return generation.published < len(generation.bounds)
