"""The one task of an object that has a `start` and a `stop`: begun once, awaited, never lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class OwnedTask:
    """Runs from `start` to `stop`; what ends it before is raised by `stop`."""

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
