"""The early end of a shadow: what there is by then is compared, and reported.

Owns how long the answers under way are waited for. Knows nothing of signals.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

GRACE_S = 10.0
"""For what was asked before the interruption."""

MIN_READ_S = 3.0
"""To read what stands in the log already, also where the grace is over."""


class Interruption:
    """Asked for by one task, heeded by another of the same loop."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._asked = asyncio.Event()
        self._scope: asyncio.Timeout | None = None
        self.can_report = False
        """Whether there may be something to report already."""
        self.give_up_s = float("inf")
        """Monotonic seconds at which nothing is waited for any more."""

    @property
    def asked(self) -> bool:
        """Whether it has been asked for."""
        return self._asked.is_set()

    def ask(self) -> bool:
        """Returns whether it will be heeded: not before there is something to report, nor twice;
        then the work is to be cancelled.
        """
        if self.asked or not self.can_report:
            return False
        self._asked.set()
        self.give_up_s = time.monotonic() + self._grace_s
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time() + self._grace_s)
        return True

    async def pause(self, seconds: float) -> None:
        """Sleep, not longer than until it is asked for."""
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            return  # the usual end

    @asynccontextmanager
    async def bounding(self) -> AsyncIterator[None]:
        """A block that is left, without an error, a grace time after it was asked for."""
        left_s = max(MIN_READ_S, self.give_up_s - time.monotonic())
        try:
            async with asyncio.timeout(left_s if self.asked else None) as self._scope:
                yield
        except TimeoutError:
            if self._scope is None or not self._scope.expired():
                raise
        finally:
            self._scope = None
