"""A run: sends each turn when it is due, whatever became of those before, and waits for the rest.

Owns the tasks and the clock (the event loop's). What is due when is the schedule's to say, what it
comes to the recorder's, how it is sent the way's.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.deploy.bench.exchange import Exchange, Outcome
from headrace.deploy.bench.recorder import Recorder
from headrace.deploy.bench.way import Way, WayError
from headrace.producers.load_schedule import LoadSchedule, Turn
from headrace.schemas.errors import HeadraceError, RequestError, UnavailableError

CANCEL_WAIT_S = 10.0
"""For the last events of what was cancelled: workers answer a cancel within 2 s."""

TICK_S = 1.0

OnEnd = Callable[[Exchange], None]


def _nothing(_exchange: Exchange) -> None:
    pass


class LoadRun:
    """One run, from the first arrival to the last answer. `run` may be called once."""

    def __init__(
        self,
        schedule: LoadSchedule,
        way: Way,
        *,
        max_in_flight: int,
        drain_timeout_s: float,
        on_end: OnEnd = _nothing,
    ) -> None:
        self.recorder = Recorder()
        self.sending_s: float | None = None
        """How long it was sent; None while it is."""
        self._schedule, self._way = schedule, way
        self._max_in_flight, self._drain_timeout_s = max_in_flight, drain_timeout_s
        self._on_end = on_end
        self._open: dict[str, tuple[Exchange, asyncio.Task[None]]] = {}
        self._serials = itertools.count()
        self._num_interrupts = 0
        self._changed = asyncio.Event()
        """A turn was answered, or the run interrupted: there may be something else to do."""
        self._start_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._start_s

    @property
    def schedule(self) -> LoadSchedule:
        """What is asked."""
        return self._schedule

    @property
    def interrupted(self) -> bool:
        """Whether the run was told to stop."""
        return self._num_interrupts > 0

    def interrupt(self) -> None:
        """Send nothing more and cancel what runs; the second call waits for nothing more."""
        self._num_interrupts += 1
        self._schedule.close()
        self._changed.set()

    async def run(self) -> None:
        """Send, then wait for answers, for `drain_timeout_s` at most; cancel what is left.

        Raises: what a bug raises. Cancel: open requests are left to run.
        """
        self._start_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(self._tick(), name="bench.tick")
            try:
                await self._send_all(tasks)
                self.sending_s = self.now_s
                await self._drain()
            finally:
                ticking.cancel()
        self.recorder.tick(self.now_s)

    def saw(self, exchange: Exchange, event: dict[str, Any]) -> None:
        """See `Observer`."""
        now_s, before = self.now_s, exchange.outcome
        num_tokens = exchange.take(event, now_s)
        if before is None:
            self.recorder.tokens_came(exchange, num_tokens, now_s)
        elif exchange.outcome is not before:
            self.recorder.turned_wrong(exchange, before)

    async def _send_all(self, tasks: asyncio.TaskGroup) -> None:
        while not self._schedule.is_over:
            turn = self._schedule.take(self.now_s)
            if turn is not None:
                self._begin(turn, tasks)
                await asyncio.sleep(0)  # where more is due than can be sent, answers are still read
                continue
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._changed.wait()

    def _wait_s(self) -> float | None:
        """Until something is due, or the schedule's end; None: until an answer comes."""
        due_s = self._schedule.next_wake_s
        return None if due_s is None else max(0.0, due_s - self.now_s)

    def _begin(self, turn: Turn, tasks: asyncio.TaskGroup) -> None:
        # NOTE: counted over the run: requests of a recorded session may be open together
        exchange = Exchange(turn, f"{turn.session.session_id}.{next(self._serials)}")
        if len(self._open) >= self._max_in_flight:
            exchange.end(Outcome.NOT_SENT, self.now_s, Outcome.NOT_SENT)
            self._conclude(exchange)
            return
        task = tasks.create_task(self._exchange(exchange), name="bench.exchange")
        self._open[exchange.request_id] = (exchange, task)

    async def _exchange(self, exchange: Exchange) -> None:
        body = {**exchange.turn.body, "stream": True, "return_token_ids": True}
        exchange.sent_s = self.now_s
        self.recorder.sent(exchange, exchange.sent_s)
        try:
            await self._way.ask(exchange, body)
        except RequestError as problem:
            exchange.end(Outcome.FAILED, self.now_s, problem.code)
        except UnavailableError:
            exchange.end(Outcome.FAILED, self.now_s, "unavailable")
        except HeadraceError:
            exchange.end(Outcome.FAILED, self.now_s, "refused")
        except WayError as problem:
            exchange.end(Outcome.FAILED, self.now_s, problem.code)
        finally:
            exchange.end(self._outcome_of_a_stop, self.now_s)
            self._conclude(exchange)

    @property
    def _outcome_of_a_stop(self) -> Outcome:
        return Outcome.CANCELLED if self.interrupted else Outcome.UNFINISHED

    def _conclude(self, exchange: Exchange) -> None:
        self._open.pop(exchange.request_id, None)
        self.recorder.ended(exchange, self.now_s)
        if exchange.outcome is Outcome.FINISHED:
            self._schedule.answered(exchange.turn, exchange.ended_s or self.now_s)
        else:
            self._schedule.gave_up(exchange.turn)
        self._on_end(exchange)
        self._changed.set()

    async def _drain(self) -> None:
        """Wait for what is open; then, or once the run is interrupted, cancel the rest."""
        if not self.interrupted:
            await self._until_none_is_open(self._drain_timeout_s, max_interrupts=0)
        open_ones = [exchange for exchange, _ in self._open.values()]
        if open_ones and await self._way.cancel(open_ones) and self.interrupted:
            await self._until_none_is_open(CANCEL_WAIT_S, max_interrupts=1)
        for _, task in self._open.values():
            task.cancel()

    async def _until_none_is_open(self, timeout_s: float, *, max_interrupts: int) -> None:
        deadline_s = self.now_s + timeout_s
        while self._open and self._num_interrupts <= max_interrupts:
            left_s = deadline_s - self.now_s
            if left_s <= 0:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.recorder.tick(self.now_s - TICK_S / 2)
