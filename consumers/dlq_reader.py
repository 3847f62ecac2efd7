"""Reads the dead-letter topic from its start to an end that stands still, and single letters.

Owns one temporary consumer. Holds one partition's fetch at a time, so memory does not grow with
the topic. Does not know what letters are read for.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from headrace.consumers.kafka_reader import as_record, bounded, find_partitions, offsets_at, reading
from headrace.consumers.range_reader import RangeReader, Span
from headrace.schemas.dead_letter import DeadLetter, DlqPlace
from headrace.schemas.errors import HeadraceError, UnavailableError
from headrace.schemas.settings import Settings

FETCH_BYTES = 2**20
"""Kafka hands out a larger record too, alone."""


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
        reader = RangeReader(self._consumer, "dead letters")
        async with aclosing(reader.records({part: Span(start, end)})) as records:
            async for record in records:
                yield DeadLetter(as_record(record))


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
