"""Reads the dead-letter topic from its start to an end that stands still, and single letters.

Owns one temporary consumer and the bounds of reading. Holds one partition's fetch at a time, so
memory does not grow with the topic. Does not know what letters are read for.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiokafka.errors import OffsetOutOfRangeError

from headrace.consumers.kafka_reader import as_record, bounded, find_partitions, offsets_at, reading
from headrace.schemas.dead_letter import DeadLetter, DlqPlace
from headrace.schemas.errors import HeadraceError, UnavailableError
from headrace.schemas.settings import Settings

FETCH_BYTES = 2**20
"""Kafka hands out a larger record too, alone."""

STALL_TIMEOUT_S = 15.0
"""Without a step forward for this long: the brokers do not answer, or a transaction is open."""

_POLL_MS = 500


class DeadLetterMissingError(HeadraceError):
    """There is no letter at the place that was asked for."""

    def __init__(self, place: DlqPlace, why: str) -> None:
        super().__init__(place, why)
        self.place, self.why = place, why

    def __str__(self) -> str:
        return f"there is no dead letter {self.place}: {self.why}"


class DlqTopicMissingError(UnavailableError):
    """The dead-letter topic is not there, or the broker went away before it was looked up."""

    def __str__(self) -> str:
        return (
            f"{self.what} was not found within {self.timeout_s:g} s: "
            "create the topics with `headrace topics create`"
        )


class DlqReader:
    """Reads with a consumer that nobody else moves; one iteration at a time.

    `ends` are where the partitions ended when it was opened: what comes later is not read, so an
    iteration ends, and a second one sees no more than the first.
    """

    def __init__(self, consumer: Any, ends: dict[Any, int]) -> None:
        self._consumer, self._ends = consumer, ends
        self._partitions = {part.partition: part for part in sorted(ends)}

    async def letters(self, *, since_ms: int | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Every letter, by partition and offset; `since_ms` is the epoch's.

        Letters that retention deletes meanwhile are left out. Raises: UnavailableError.
        Cancel: safe, it only reads.
        """
        parts = list(self._partitions.values())
        starts = await bounded("offsets", self._consumer.beginning_offsets(parts))
        if since_ms is not None:
            starts = await offsets_at(self._consumer, parts, max(0, since_ms))
        for part in parts:
            async with aclosing(self._between(part, starts[part], self._ends[part])) as found:
                async for letter in found:
                    yield letter

    async def letter_at(self, place: DlqPlace) -> DeadLetter:
        """The letter at `place`. Raises: DeadLetterMissingError, UnavailableError. Cancel: safe."""
        part = self._partitions.get(place.partition)
        if part is None:
            raise DeadLetterMissingError(place, f"partitions are 0 to {max(self._partitions)}")
        start = (await bounded("offsets", self._consumer.beginning_offsets([part])))[part]
        end = self._ends[part]
        if not start <= place.offset < end:
            held = f"holds offsets {start} to {end - 1}" if start < end else "is empty"
            raise DeadLetterMissingError(place, f"partition {place.partition} {held} now")
        async with aclosing(self._between(part, place.offset, place.offset + 1)) as found:
            async for letter in found:
                return letter
        raise DeadLetterMissingError(place, "no record has this offset")

    async def _between(self, part: Any, start: int, end: int) -> AsyncGenerator[DeadLetter, None]:
        if start >= end:
            return
        self._consumer.assign([part])
        self._consumer.seek(part, start)
        position, deadline_s = start, time.monotonic() + STALL_TIMEOUT_S
        while position < end:
            for record in await self._poll(part):
                if record.offset >= end:
                    return
                yield DeadLetter(as_record(record))
            # transaction markers move the position without a record
            reached = await bounded("position", self._consumer.position(part))
            if reached > position:
                position, deadline_s = reached, time.monotonic() + STALL_TIMEOUT_S
            elif time.monotonic() > deadline_s:
                what = f"Kafka (dead letters, read up to {part.partition}-{position})"
                raise UnavailableError(what, STALL_TIMEOUT_S)

    async def _poll(self, part: Any) -> list[Any]:
        poll = self._consumer.getmany(part, timeout_ms=_POLL_MS)
        try:
            found: dict[Any, list[Any]] = await bounded("dead letters", poll)
        except UnavailableError as problem:
            if not isinstance(problem.__cause__, OffsetOutOfRangeError):
                raise
            starts = await bounded("offsets", self._consumer.beginning_offsets([part]))
            self._consumer.seek(part, starts[part])
            return []
        return found.get(part, [])


@asynccontextmanager
async def reading_dlq(settings: Settings) -> AsyncIterator[DlqReader]:
    """A reader of the dead-letter topic. Raises: UnavailableError, also where it is missing."""
    async with reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        topic = settings.topics.dlq
        try:
            parts = await find_partitions(consumer, topic)
        except UnavailableError as problem:
            what = f"topic {topic} at {settings.kafka}"
            raise DlqTopicMissingError(what, problem.timeout_s) from problem
        yield DlqReader(consumer, await bounded("offsets", consumer.end_offsets(parts)))
