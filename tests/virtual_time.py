"""An event loop whose clock is moved by its waits: tests of long waits take no time.

For code that talks to nothing outside the process.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Waiting(selectors.DefaultSelector):
    """Moves the clock where it would wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("the loop waits for what never comes")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` begins at 0."""

    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.now_s

    def block(self, seconds: float) -> None:
        """Time passes in which nothing else can run, as in a long computation."""
        self._waiting.now_s += seconds


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """`work` in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
