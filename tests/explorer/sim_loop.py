"""An event loop without threads, sockets or real time: it runs only while it is told to.

Owns one worker's callbacks and timers. Knows nothing of what they do.
"""

import asyncio
import heapq
import weakref
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, cast

MAX_CALLBACKS = 20_000
"""Of one `run_until_idle`: code that needs more waits by turning in circles."""


class BusyError(Exception):
    """The loop never becomes idle."""


class _Timer(asyncio.TimerHandle):
    """A handle that does not count what was cancelled."""

    def __init__(self, when: float, loop: "SimLoop") -> None:
        super().__init__(when, _nothing, (), loop.as_loop)


class SimLoop:
    """Runs callbacks in the order of their scheduling; `time` says what time it is.

    Has what tasks, futures, timeouts and sleeps ask of a loop, and nothing else.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._ready: deque[tuple[asyncio.Handle, Context, Callable[..., object], Any]] = deque()
        self._timers: list[tuple[float, int, _Timer, Context, Callable[..., object], Any]] = []
        self._num_timers = 0
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], int]
        self._tasks = weakref.WeakKeyDictionary()
        self._num_tasks = 0
        self.problems: list[str] = []
        """What no task has caught."""

    def run_until_idle(self) -> None:
        """Run what is ready, and timers that are due. Raises: BusyError."""
        outer = events._get_running_loop()
        events._set_running_loop(self.as_loop)
        left = MAX_CALLBACKS
        try:
            while self._take_due_timers() or self._ready:
                left -= len(self._ready)
                if left < 0:
                    raise BusyError("the worker's loop never becomes idle")
                self._run_once()
        finally:
            events._set_running_loop(outer)

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """For what wants a whole one."""
        return cast(asyncio.AbstractEventLoop, self)

    def _run_once(self) -> None:
        for _ in range(len(self._ready)):
            handle, context, callback, args = self._ready.popleft()
            if handle.cancelled():
                continue
            try:
                context.run(callback, *args)
            except Exception as problem:
                self.problems.append(f"{callback!r}: {problem!r}")

    def _take_due_timers(self) -> bool:
        now_s = self.time()
        while self._timers and (self._timers[0][0] <= now_s or self._timers[0][2].cancelled()):
            _, _, handle, context, callback, args = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._ready.append((handle, context, callback, args))
        return bool(self._ready)

    @property
    def next_timer_s(self) -> float | None:
        """When the next timer is due; None: nothing waits for a time."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    # what asyncio asks of a loop

    def time(self) -> float:
        return self._time()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(_nothing, (), self.as_loop)
        self._ready.append((handle, context or copy_context(), callback, args))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, self)
        self._num_timers += 1
        entry = (when, self._num_timers, handle, context or copy_context(), callback, args)
        heapq.heappush(self._timers, entry)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio says so; the timer is skipped when its time comes."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self.as_loop)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self.as_loop, name=name, context=context)
        self._num_tasks += 1
        self._tasks[task] = self._num_tasks
        return task

    def tasks(self) -> "list[asyncio.Task[Any]]":
        """Those that have not ended, the oldest first."""
        alive = [(number, task) for task, number in self._tasks.items() if not task.done()]
        return [task for _, task in sorted(alive, key=lambda one: one[0])]

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """At once: there are no threads."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False


def _nothing() -> None:
    """Handles are asked whether they were cancelled; what they stand for is kept beside them."""
