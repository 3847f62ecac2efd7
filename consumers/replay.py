"""The past of the response log: reads the wanted events from a start up to a moving target.

Owns one temporary consumer and the checks of a cursor. Knows nothing of the live reader except the
positions that it is handed: [start, target) is read here, [target, ∞) comes live, so nothing is
missed or repeated.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from headrace.consumers.cursor import Cursor, resume_gap
from headrace.consumers.kafka_reader import (
    KAFKA_TIMEOUT_S,
    bounded,
    close_consumer,
    offsets_at,
    open_consumer,
)
from headrace.consumers.log_event import LogEvent, Wanted, decode_event
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

FETCH_BYTES = 256 * 1024
"""Per partition and fetch: 12 partitions cost 3 MB while a replay runs."""

CLOCK_SLACK_MS = 300_000
"""How far the clocks of gateway and workers may differ before a start by time misses events."""

STALL_TIMEOUT_S = 30.0
"""Without a step forward for this long, the brokers do not answer."""

_POLL_MS = 500


class LogReplay:
    """Reads [start, target) of some partitions, in offset order within each.

    NOTE: `targets` only grows, and each `next` looks at it anew.
    """

    def __init__(
        self, consumer: Any, topic: str, wanted: Wanted, on_stop: Callable[[], None]
    ) -> None:
        self._consumer, self._topic, self._wanted = consumer, topic, wanted
        self._on_stop: Callable[[], None] | None = on_stop
        self._next_offset: dict[int, int] = {}
        self._targets: Mapping[int, int] = {}
        self._found: deque[LogEvent] = deque()

    @classmethod
    async def open(
        cls, settings: Settings, wanted: Wanted, *, on_stop: Callable[[], None]
    ) -> "LogReplay":
        """Connect; `on_stop` is called once, when it is stopped. Raises: UnavailableError."""
        consumer = await open_consumer(settings, max_partition_fetch_bytes=FETCH_BYTES)
        return cls(consumer, settings.topics.responses, wanted, on_stop)

    async def stop(self) -> None:
        """Free the consumer. Safe to call twice."""
        on_stop, self._on_stop = self._on_stop, None
        if on_stop is not None:
            on_stop()
        await close_consumer(self._consumer)

    async def begin_at(
        self, partitions: set[int], targets: Mapping[int, int], *, time_ms: int | None
    ) -> None:
        """Start at each log start, or at `time_ms` (less the clocks' slack) where that is later."""
        parts = self._assign(partitions, targets)
        starts = await bounded("offsets", self._consumer.beginning_offsets(parts))
        if time_ms is not None:
            starts = await offsets_at(self._consumer, parts, max(0, time_ms - CLOCK_SLACK_MS))
        for part in parts:
            self._seek(part.partition, starts[part])

    async def begin_after(self, cursor: Cursor, targets: Mapping[int, int]) -> LogEvent:
        """Start behind `cursor` and return the event at it.

        Raises: RequestError `resume_gap` where the log no longer, or not yet, has that record, or
        where it is no event of this reader.
        """
        if cursor.partition not in targets:
            raise resume_gap("the cursor is of another log")
        (part,) = self._assign({cursor.partition}, targets)
        starts = await bounded("offsets", self._consumer.beginning_offsets([part]))
        ends = await bounded("offsets", self._consumer.end_offsets([part]))
        if not starts[part] <= cursor.offset < ends[part]:
            raise resume_gap(
                f"the log holds offsets {starts[part]} to {ends[part]} of this partition now"
            )
        self._seek(cursor.partition, cursor.offset)
        event = await self._event_at(part, cursor.offset)
        if event is None or not self._wanted.accepts(event):
            raise resume_gap("the cursor is no event of this session or request")
        self._seek(cursor.partition, cursor.offset + 1)
        return event

    async def next(self) -> LogEvent | None:
        """The next wanted event, or None once every partition has reached its target.

        Raises: RequestError `resume_gap` if the log was cut while it was read; UnavailableError.
        Cancel: safe, the events that were fetched stay for the next call.
        """
        deadline_s = time.monotonic() + STALL_TIMEOUT_S
        while not self._found:
            behind = [
                TopicPartition(self._topic, number)
                for number, offset in self._next_offset.items()
                if offset < self._targets[number]
            ]
            if not behind:
                return None
            if await self._fetch(behind):
                deadline_s = time.monotonic() + STALL_TIMEOUT_S
            elif time.monotonic() > deadline_s:
                raise UnavailableError("Kafka (replay)", STALL_TIMEOUT_S)
        return self._found.popleft()

    async def _fetch(self, behind: list[Any]) -> bool:
        before = dict(self._next_offset)
        batch = await self._poll(behind)
        for part in behind:
            records = batch.get(part)
            if records:
                self._take(part.partition, records)
            else:  # transaction markers move the position without a record
                self._next_offset[part.partition] = await bounded(
                    "position", self._consumer.position(part)
                )
        return before != self._next_offset

    async def _poll(self, parts: list[Any]) -> dict[Any, list[Any]]:
        try:
            found: dict[Any, list[Any]] = await self._consumer.getmany(*parts, timeout_ms=_POLL_MS)
        except OffsetOutOfRangeError as problem:
            raise resume_gap("the log was cut off while it was read") from problem
        except KafkaError as problem:
            raise UnavailableError("Kafka (replay)", KAFKA_TIMEOUT_S) from problem
        return found

    def _take(self, number: int, records: list[Any]) -> None:
        for record in records:
            if record.offset >= self._targets[number]:
                self._seek(number, record.offset)  # if the target moves on, it is read then
                return
            self._next_offset[number] = record.offset + 1
            event = decode_event(record)
            if event is not None and self._wanted.accepts(event):
                self._found.append(event)

    async def _event_at(self, part: Any, offset: int) -> LogEvent | None:
        deadline_s = time.monotonic() + STALL_TIMEOUT_S
        while time.monotonic() < deadline_s:
            records = (await self._poll([part])).get(part)
            if records:
                same = records[0].offset == offset
                return decode_event(records[0]) if same else None
            if await bounded("position", self._consumer.position(part)) > offset:
                return None
        raise UnavailableError("Kafka (replay)", STALL_TIMEOUT_S)

    def _assign(self, partitions: set[int], targets: Mapping[int, int]) -> list[Any]:
        parts = [TopicPartition(self._topic, number) for number in sorted(partitions)]
        self._targets = targets
        self._consumer.assign(parts)
        return parts

    def _seek(self, number: int, offset: int) -> None:
        self._next_offset[number] = offset
        self._consumer.seek(TopicPartition(self._topic, number), offset)
