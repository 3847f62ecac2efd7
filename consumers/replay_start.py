"""Where a reader of the past begins: right behind a cursor, or where its events can have begun.

Owns the checks of a cursor against the log as it is now. Reads no events.
"""

import asyncio
import time

from headrace.consumers.cursor import Cursor, resume_gap
from headrace.consumers.live_reader import LiveReader
from headrace.consumers.log_bounds import LogBounds
from headrace.consumers.log_event import Wanted
from headrace.consumers.range_reader import Span
from headrace.consumers.recent_log import RecentLog
from headrace.schemas.errors import UnavailableError
from headrace.schemas.request_id import time_of

CLOCK_SLACK_MS = 300_000
"""How far the clocks of gateways and workers may differ before a start by time misses events."""

LOOK_BACK_MS = (60_000, 600_000)
"""Most answers that are resumed began lately: only where they did not, more of the log is read."""

FRESH_MS = 5_000
FRESH_PATIENCE_S = 0.5
"""A request of which the id was just made has most likely nothing in the log: its first event is
waited for before Kafka is read for what could stand there by a clock that is wrong.
"""

IN_MEMORY_TIMEOUT_S = 1.0
"""Where brokers do not answer, what is in memory is given without asking for the log's start."""

REACH_TIMEOUT_S = 10.0
"""For the live reader to come to an event that the client had from another gateway."""


class ReplayStart:
    """Answers with offsets from which on everything wanted is still to be read."""

    def __init__(self, reader: LiveReader, recent: RecentLog, bounds: LogBounds) -> None:
        self._reader, self._recent, self._bounds = reader, recent, bounds

    async def check(self, cursor: Cursor) -> None:
        """Returns once the record at `cursor` was read live, or lies before that.

        NOTE: another gateway may be ahead of this one: its client's cursor is no gap then.
        Raises: RequestError `resume_gap` where the log no longer, or not yet, has that record;
            UnavailableError.
        """
        number, offset = cursor.partition, cursor.offset
        if number not in self._reader.positions:
            raise resume_gap("the cursor is of another log")
        span = await self._span(number, offset)
        if span is not None and not span.start <= offset < span.end:
            raise resume_gap(
                f"the log holds offsets {span.start} to {span.end} of this partition now"
            )
        await self._reader.reach({number: offset + 1}, REACH_TIMEOUT_S)

    async def _span(self, number: int, offset: int) -> Span | None:
        """What the partition holds; None where nobody can say and the record is in memory."""
        in_memory = self._recent.covers(number, offset) and offset < self._reader.positions[number]
        try:
            async with asyncio.timeout(IN_MEMORY_TIMEOUT_S if in_memory else None):
                return (await self._bounds.spans()).get(number)
        except (TimeoutError, UnavailableError):
            if not in_memory:
                raise
            return None

    async def early(self, wanted: Wanted, partitions: set[int]) -> list[dict[int, int]]:
        """Where to begin, and where if the beginning of the request is not found from there on.

        What is in memory if that is enough. Else the last one begins where nothing wanted can stand
        before it: at the time in an id less the clocks' slack, or at the start of the log.
        Raises: UnavailableError.
        """
        begun_ms = _begun_ms(wanted)
        if self._is_in_memory(wanted, partitions, begun_ms):
            return [{number: self._recent.start(number) for number in partitions}]
        spans = await self._bounds.spans()
        last = {number: spans[number].start for number in partitions if number in spans}
        if begun_ms is not None:
            last = await self._not_before(last, begun_ms - CLOCK_SLACK_MS)
        if wanted.request_id is None:
            return [last]
        now_ms = time.time_ns() // 1_000_000
        starts = [await self._not_before(last, now_ms - back_ms) for back_ms in LOOK_BACK_MS]
        starts.append(last)
        return [
            one
            for one, next_one in zip(starts, [*starts[1:], None], strict=True)
            if one != next_one
        ]

    async def _not_before(self, starts: dict[int, int], time_ms: int) -> dict[int, int]:
        """`starts`, or what was written at `time_ms` where that is later."""
        later, positions = await self._bounds.at(time_ms), self._reader.positions
        return {
            number: max(start, min(later.get(number, start), positions[number]))
            for number, start in starts.items()
        }

    def _is_in_memory(self, wanted: Wanted, partitions: set[int], time_ms: int | None) -> bool:
        if self._recent.has_whole(wanted, partitions):
            return True
        return time_ms is not None and all(
            self._recent.covers_since(number, time_ms - CLOCK_SLACK_MS) for number in partitions
        )


def patience_s(wanted: Wanted) -> float:
    """How long a reader from the beginning waits for a live event before Kafka is read."""
    begun_ms = _begun_ms(wanted)
    fresh = begun_ms is not None and begun_ms > time.time_ns() // 1_000_000 - FRESH_MS
    return FRESH_PATIENCE_S if fresh else 0.0


def _begun_ms(wanted: Wanted) -> int | None:
    """Before which nothing wanted was written; None where no id says so.

    An id of the future was made by a clock that says nothing.
    """
    times = [time_of(name) for name in (wanted.request_id, wanted.session_id) if name]
    known = [time_ms for time_ms in times if time_ms is not None]
    now_ms = time.time_ns() // 1_000_000
    return max(known) if known and max(known) <= now_ms + CLOCK_SLACK_MS else None
