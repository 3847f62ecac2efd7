"""Nominal time: it goes on like time, but stands while a fault that is due cannot strike yet."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

POLL_S = 0.05


class Clock:
    """Seconds of the plan. It begins to run when it is made."""

    def __init__(self) -> None:
        self._ran_s = 0.0
        self._since_s = time.monotonic()
        self._holders: list[object] = []

    @property
    def now_s(self) -> float:
        running_s = 0.0 if self._holders else time.monotonic() - self._since_s
        return self._ran_s + running_s

    @contextmanager
    def held_for(self, holder: object) -> Iterator[None]:
        """Stand until `go_on(holder)`, or the end of the block."""
        self._ran_s = self.now_s
        self._holders.append(holder)
        try:
            yield
        finally:
            self.go_on(holder)

    def go_on(self, holder: object) -> None:
        """Do not stand for `holder` any more."""
        if holder in self._holders:
            self._holders.remove(holder)
            if not self._holders:
                self._since_s = time.monotonic()

    async def until(self, at_s: float) -> None:
        """Wait for a moment of the plan."""
        while (left_s := at_s - self.now_s) > 0:  # noqa: ASYNC110 - it may stand meanwhile
            await asyncio.sleep(POLL_S if self._holders else min(left_s, 1.0))
