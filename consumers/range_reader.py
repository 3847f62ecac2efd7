"""Reads ranges of a topic's partitions to an end that stands still, as one series by time.

Owns the bounds of reading: it stops at the ends it was given, and raises if it does not get on.
Holds one fetch a partition, so memory does not grow with the ranges. Does not know what for.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import OffsetOutOfRangeError

from headrace.consumers.kafka_reader import bounded
from headrace.schemas.errors import UnavailableError

STALL_TIMEOUT_S = 15.0
"""Without a step forward for this long: the brokers do not answer, or a transaction is open."""

_POLL_MS = 500


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def num_offsets(self) -> int:
        """How many offsets it has; some may hold no record."""
        return max(0, self.end - self.start)


async def readable_spans(consumer: Any, parts: Iterable[Any]) -> dict[Any, Span]:
    """All of each partition that can be read now: up to the last stable offset, so without what
    stands behind the start of an open transaction.

    Raises: UnavailableError.
    """
    wanted = list(parts)
    starts = await bounded("offsets", consumer.beginning_offsets(wanted))
    ends = await bounded("offsets", consumer.end_offsets(wanted))
    return {part: Span(starts[part], ends[part]) for part in wanted}


class RangeReader:
    """Reads with a consumer that nobody else moves, one iteration at a time."""

    def __init__(self, consumer: Any, what: str) -> None:
        """`what` is read, in the words of an error."""
        self._consumer, self._what = consumer, what

    async def records(self, spans: Mapping[Any, Span]) -> AsyncGenerator[Any, None]:
        """Each consumed record in `spans`: in offset order within a partition, the partitions
        merged by their records' time.

        What retention deletes meanwhile is left out. Raises: UnavailableError, which says how far
        it got. Cancel: safe, it only reads.
        """
        reading = {part: span for part, span in spans.items() if span.num_offsets}
        if not reading:
            return
        self._consumer.assign(list(reading))
        for part, span in reading.items():
            self._consumer.seek(part, span.start)
        merge = _Merge(self._consumer, self._what, reading)
        while (record := await merge.next()) is not None:
            yield record


class _Merge:
    """The reading of one set of ranges."""

    def __init__(self, consumer: Any, what: str, spans: Mapping[Any, Span]) -> None:
        self._consumer, self._what = consumer, what
        self._ends = {part: span.end for part, span in spans.items()}
        self._positions = {part: span.start for part, span in spans.items()}
        self._queues: dict[Any, deque[Any]] = {part: deque() for part in spans}

    async def next(self) -> Any:
        """The oldest of what is left; None at the end."""
        await self._fill()
        if not self._queues:
            return None
        part = min(self._queues, key=lambda part: (self._queues[part][0].timestamp, part.partition))
        return self._queues[part].popleft()

    async def _fill(self) -> None:
        """Until each partition that is not at its end has a record to choose from."""
        deadline_s = time.monotonic() + STALL_TIMEOUT_S
        while hungry := [part for part, queue in self._queues.items() if not queue]:
            before = sum(self._positions[part] for part in hungry)
            await self._poll(hungry)
            if sum(self._positions[part] for part in hungry) > before:
                deadline_s = time.monotonic() + STALL_TIMEOUT_S
            elif time.monotonic() > deadline_s:
                part = hungry[0]
                place = f"{part.partition}-{self._positions[part]}"
                raise UnavailableError(f"Kafka ({self._what}, read up to {place})", STALL_TIMEOUT_S)

    async def _poll(self, hungry: list[Any]) -> None:
        waiting = [part for part in hungry if self._positions[part] < self._ends[part]]
        for part, records in (await self._fetch(waiting)).items():
            self._queues[part] += [one for one in records if one.offset < self._ends[part]]
        for part in hungry:
            # transaction markers move the position without a record
            reached = await bounded("position", self._consumer.position(part))
            self._positions[part] = max(self._positions[part], reached)
            if self._positions[part] >= self._ends[part] and not self._queues[part]:
                del self._queues[part]

    async def _fetch(self, parts: list[Any]) -> Mapping[Any, list[Any]]:
        if not parts:
            return {}
        try:
            poll = self._consumer.getmany(*parts, timeout_ms=_POLL_MS)
            found: Mapping[Any, list[Any]] = await bounded(self._what, poll)
        except UnavailableError as problem:
            if not isinstance(problem.__cause__, OffsetOutOfRangeError):
                raise
            starts = await bounded("offsets", self._consumer.beginning_offsets(parts))
            for part in parts:
                if starts[part] > self._positions[part]:
                    self._consumer.seek(part, starts[part])
            return {}
        return found
