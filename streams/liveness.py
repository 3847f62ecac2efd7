"""Whether a worker gets on: alive is who makes progress, not who has an open port.

What is not alive ends its process, so that another takes over; nobody has to look at `/healthz`.
"""

import asyncio
import faulthandler
import signal
import time
from collections.abc import Callable
from typing import Protocol

STALL_LIMIT_S = 60.0
"""No step takes that long, and no record that can be read stays unread for that long."""

WATCH_INTERVAL_S = 1.0


class Stepping(Protocol):
    """What is asked of the engine (headrace.models.engine)."""

    @property
    def alive(self) -> bool: ...

    @property
    def num_running(self) -> int: ...

    @property
    def last_step_s(self) -> float | None: ...


class Liveness:
    """Asks the engine and the reading of records.

    `unread_s(now_s)`: for how long a record has stood there that can be read and is not, though
    there is room for it.
    """

    def __init__(self, engine: Stepping, unread_s: Callable[[float], float]) -> None:
        self._engine, self._unread_s = engine, unread_s

    def problem(self, now_s: float) -> str | None:
        """What is wrong for good, or None. A busy engine must end steps."""
        if not self._engine.alive:
            return "the engine is dead"
        last_step_s = self._engine.last_step_s
        if self._engine.num_running and last_step_s is not None:
            stalled_s = now_s - last_step_s
            if stalled_s > STALL_LIMIT_S:
                return f"no engine step for {stalled_s:.0f} s"
        unread_s = self._unread_s(now_s)
        if unread_s > STALL_LIMIT_S:
            return f"a record is there and was not read for {unread_s:.0f} s"
        return None

    async def watch(self, on_problem: Callable[[str], None]) -> None:
        """Look for ever, and report what is wrong, once. Cancel: safe."""
        while (problem := self.problem(time.monotonic())) is None:  # noqa: ASYNC110 - a timer
            await asyncio.sleep(WATCH_INTERVAL_S)
        on_problem(problem)


async def end_with_the_loop() -> None:
    """While this runs, the process ends (SIGALRM) when its event loop stands still for
    STALL_LIMIT_S: such a loop can report nothing. The kernel sees to it, whoever holds the
    interpreter's lock; where the main thread stood is written to stderr. So ends, too, a process
    that was stopped for that long, as soon as it wakes up.

    For one loop of a process, in its main thread. Cancel: nobody watches any more.
    """
    faulthandler.register(signal.SIGALRM, all_threads=False, chain=True)
    try:
        while True:
            signal.setitimer(signal.ITIMER_REAL, STALL_LIMIT_S)
            await asyncio.sleep(WATCH_INTERVAL_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)
