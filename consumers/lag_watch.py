"""Reads the lag again and again in the background, and keeps the last reading.

Owns one task. Kafka that is away is asked again, for ever; the last reading stays.
"""

import asyncio
import time
from typing import Protocol

import structlog

from headrace.consumers.answer_tally import AnswerTally
from headrace.consumers.lag import Lag
from headrace.consumers.lag_service import LagService
from headrace.consumers.lag_work import AnswerLengths
from headrace.consumers.log_event import LogEvent
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import OwnedTask

REFRESH_S = 2.0
"""Well under the usual interval of a scrape (15 s); a reading takes four small questions."""

_log = structlog.get_logger(__name__)


class Readings(Protocol):
    """Where readings come from: a `LagService`."""

    async def read(self) -> Lag: ...

    async def stop(self) -> None: ...


class LagWatch:
    """`latest` is refreshed from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        *,
        service: Readings | None = None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._lengths = AnswerLengths()
        self.answers = AnswerTally()
        self._service = service or LagService(settings, lengths=self._lengths)
        self._refresh_s = refresh_s
        self._task = OwnedTask("lag-watch")
        self._since_s = time.monotonic()
        self.latest: Lag | None = None
        """The last reading that succeeded; None before the first."""
        self.num_failures = 0
        """Readings that failed, since the start."""

    def age_s(self, now_s: float) -> float:
        """Age of `latest` at `now_s` (monotonic); without one, the time that it is waited for."""
        return max(0.0, now_s - (self.latest.read_at_s if self.latest else self._since_s))

    def on_event(self, event: LogEvent) -> None:
        """Take an event of the live response log: what is being answered, and how long it gets."""
        self._lengths.add(event.event)
        self.answers.add(event)

    async def start(self) -> None:
        """Begin; returns at once, whether Kafka answers or not."""
        self._task.start(self._watch())

    async def stop(self) -> None:
        """End the task and close the connection. Safe to call twice.

        Raises: what ended the task before, if anything did.
        """
        try:
            await self._task.stop()
        finally:
            await self._service.stop()

    async def _watch(self) -> None:
        is_known = True
        while True:
            try:
                self.latest = await self._service.read()
            except UnavailableError as problem:
                self.num_failures += 1
                if is_known:  # one line for each time it is away
                    _log.warning("lag unknown, asked again", reason=str(problem))
                is_known = False
            else:
                is_known = True
            await asyncio.sleep(self._refresh_s)
