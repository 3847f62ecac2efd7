"""The events of one request for one reader: each once, in order, until the last (contract §3)."""

import asyncio
from typing import Self

from headrace.consumers.cursor import resume_gap
from headrace.consumers.log_event import LogEvent, Wanted
from headrace.consumers.response_log import ResponseLog
from headrace.schemas.errors import HeadraceError
from headrace.schemas.reply import ReplyReader, Seen, is_last


class RequestFeed:
    """An async context manager around a subscription and the reader's rule.

    `live_only`: the request was not written before, so its log holds nothing yet. Otherwise its
    events are read from the start, from behind `starting_after`, or from behind `cursor`.
    """

    def __init__(
        self,
        log: ResponseLog,
        *,
        tenant: str,
        request_id: str,
        session_id: str | None = None,
        starting_after: int | None = None,
        cursor: str | None = None,
        live_only: bool = False,
    ) -> None:
        self.finished = False
        """Whether there is nothing more to come."""
        self._starting_after = starting_after
        self._reader = ReplyReader(starting_after=starting_after)
        self._subscription = log.follow(
            tenant=tenant,
            session_id=session_id,
            request_id=request_id,
            cursor=cursor,
            from_start=cursor is None and not live_only,
        )

    async def __aenter__(self) -> Self:
        """Raises: RequestError `resume_gap`, `invalid_value`; UnavailableError."""
        await self._subscription.__aenter__()
        seen = self._subscription.resumed_after
        if seen is not None:
            self._reader = ReplyReader(starting_after=seen.event["sequence_number"] - 1)
            self._reader.see(seen.event)
            self.finished = self._reader.finished
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._subscription.__aexit__()

    @property
    def wanted(self) -> Wanted:
        """What is followed."""
        return self._subscription.wanted

    @property
    def is_unknown(self) -> bool:
        """Whether the log was read up to now and holds no event of this request."""
        return self._subscription.is_live and self._reader.attempt is None

    async def next(self, timeout_s: float) -> tuple[LogEvent, Seen] | None:
        """The next event to keep, with NEW or RESTART; None after `timeout_s` or when `finished`.

        Raises: RequestError `resume_gap` where events are missing; SlowReaderError;
            UnavailableError. Cancel: safe, no event is lost.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.finished:
                    event = await anext(self._subscription)
                    seen = self._judge(event)
                    if seen is not Seen.OLD:
                        return event, seen
        except TimeoutError:
            return None
        return None

    def fail(self, error: HeadraceError) -> None:
        """End the reading: `next` raises `error`, once what is replayed was read."""
        self._subscription.fail(error)

    def _judge(self, event: LogEvent) -> Seen:
        seen = self._reader.see(event.event)
        if seen is Seen.GAP:
            raise resume_gap("events of this request are missing in the log", "request_id")
        ended_before = (
            seen is Seen.OLD
            and is_last(event.event)
            and event.event["attempt"] == self._reader.attempt
        )
        number = event.event["sequence_number"]
        if ended_before and self._starting_after is not None and number < self._starting_after:
            raise resume_gap(f"the last event of this request is {number}", "starting_after")
        self.finished = self._reader.finished or ended_before
        return seen
