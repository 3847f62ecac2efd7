"""Tasks that end when they are told to, whatever happens in that moment, and leave none behind.

CPython's `TaskGroup` and, before 3.12, `asyncio.wait_for` lose a cancellation that comes together
with an error or a result: a loop that goes on after errors would never end. `asyncio.wait` loses
none.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, which is short and bounds itself, to its end even if the caller is cancelled
    meanwhile; then re-raise.

    Cancel: delayed until `work` is over, however often it is asked for.
    """
    task = asyncio.create_task(work, name="despite-cancel")  # awaited on every path
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            cancelled = problem
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def until_first_done(*works: Coroutine[Any, Any, object]) -> None:
    """Run `works` side by side; when one ends or fails, cancel and await the rest.

    Raises: what the first one raised (the first of several).
    Cancel: safe, and wins over errors; all are cancelled and awaited, no task is left behind.
    """
    tasks = [asyncio.create_task(work, name="until-first-done") for work in works]
    problems: list[BaseException] = []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        problems = _problems(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await finish_despite_cancel(asyncio.wait(tasks))
        problems += _problems(tasks)
    if problems:
        raise problems[0]


def _problems(tasks: list[asyncio.Task[Any]]) -> list[BaseException]:
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [problem for task in ended if (problem := task.exception()) is not None]


class OwnedTask:
    """The one task of an object that is started and stopped; what ends it before, `stop` raises."""

    def __init__(self, name: str) -> None:
        """`name` is the task's, for logs and errors."""
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin. Raises: RuntimeError where it was started and not stopped."""
        if self._task is not None:
            work.close()
            raise RuntimeError(f"{self._name} is started already")
        self._task = asyncio.create_task(work, name=self._name)

    async def stop(self) -> None:
        """Cancel it and wait for its end. Safe to call twice, and before `start`.

        Raises: what ended it before, if anything did.
        """
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (problem := task.exception()) is not None:
            raise problem
