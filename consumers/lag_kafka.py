"""What the lag service asks Kafka: partitions, offsets, and the records that are not committed.

Owns one admin client and one group-less consumer. Joins no group and commits nothing. Everything
raises UnavailableError for no answer in time and for Kafka's errors: close it and open another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError

from headrace.consumers.kafka_reader import (
    KAFKA_TIMEOUT_S,
    STOP_TIMEOUT_S,
    bounded,
    close_consumer,
    open_consumer,
    start_or_close,
)
from headrace.consumers.lag_backlog import Place
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import finish_despite_cancel

FETCH_BYTES = 256 * 1024
"""Of each partition; Kafka hands out a larger record too, alone."""

MAX_POLL_RECORDS = 500
"""Handed out in one go, some 5 ms of work: the loop stays free for others in between."""

POLL_MS = 200
ALONE_POLL_MS = 1_000
"""For one partition that is known to have something: what was fetched may be fetched once more."""

RETRY_PAUSE_S = 0.1


class LagTopicMissingError(UnavailableError):
    """A topic that the group reads is not there."""

    def __str__(self) -> str:
        return f"{self.what} is not there: create it with `headrace topics create`"


class Offsets(NamedTuple):
    """Of one partition: [start, end) can be read; None: the group has committed nothing."""

    committed: int | None
    start: int
    end: int


class LagKafka:
    """A connection, from `open` to `close`."""

    def __init__(self, settings: Settings, admin: Any, consumer: Any) -> None:
        self._settings, self._admin, self._consumer = settings, admin, consumer
        self._coordinator: int | None = None
        self._assigned: set[Place] = set()

    @classmethod
    async def open(cls, settings: Settings) -> "LagKafka":
        """Connect. Raises: UnavailableError. Cancel: safe, nothing stays open."""
        consumer = await open_consumer(settings, max_partition_fetch_bytes=FETCH_BYTES)
        try:
            admin = await _open_admin(settings)
        except BaseException:
            await close_consumer(consumer)
            raise
        return cls(settings, admin, consumer)

    async def close(self) -> None:
        """Close both clients. Cancel: delayed until they are closed."""
        await close_consumer(self._consumer)
        await _close_client(self._admin.close)

    async def places(self, topics: Collection[str]) -> list[Place]:
        """All partitions. Raises: LagTopicMissingError, UnavailableError."""
        found = await bounded("topics", self._admin.describe_topics(list(topics)))
        places = []
        for topic in found:
            if topic["error_code"] or not topic["partitions"]:
                what = f"topic {topic['topic']} at {self._settings.kafka}"
                raise LagTopicMissingError(what, KAFKA_TIMEOUT_S)
            places += [
                TopicPartition(topic["topic"], one["partition"]) for one in topic["partitions"]
            ]
        return sorted(places)

    async def offsets(self, places: Collection[Place]) -> dict[Place, Offsets]:
        """Where the group and the logs are. Committed first: what is committed later lies before
        an end that is asked for later.
        """
        wanted = [TopicPartition(*place) for place in places]
        committed = await bounded("committed offsets", self._committed(wanted))
        starts = await bounded("offsets", self._consumer.beginning_offsets(wanted))
        ends = await bounded("offsets", self._consumer.end_offsets(wanted))
        return {part: Offsets(committed[part], starts[part], ends[part]) for part in wanted}

    async def _committed(self, wanted: list[Any]) -> dict[Any, int | None]:
        """One request for all; None where the group has no offset. For ever, while the group's
        coordinator moves: the caller bounds it.
        """
        group = self._settings.group
        while True:
            try:
                if self._coordinator is None:
                    self._coordinator = await self._admin.find_coordinator(group)
                found = await self._admin.list_consumer_group_offsets(
                    group, self._coordinator, wanted
                )
            except KafkaError as problem:
                if not problem.retriable:
                    raise
                found = {}
            # NOTE: aiokafka drops the error of a whole answer, which then has no partitions.
            if all(part in found for part in wanted):
                return {part: _offset(found[part]) for part in wanted}
            self._coordinator = None
            await asyncio.sleep(RETRY_PAUSE_S)

    def follow(self, positions: Mapping[Place, int]) -> None:
        """Read these partitions, and no other, from these offsets on."""
        self._assigned = set(positions)
        self._consumer.assign([TopicPartition(*place) for place in positions])
        for place, offset in positions.items():
            self.seek(place, offset)

    @property
    def followed(self) -> set[Place]:
        """The partitions that are read."""
        return self._assigned

    def seek(self, place: Place, offset: int) -> None:
        """Read `place` on at `offset`."""
        self._consumer.seek(TopicPartition(*place), offset)

    def high_water(self, place: Place) -> int | None:
        """The end of the log behind open transactions, too, as of the last fetch."""
        found: int | None = self._consumer.highwater(TopicPartition(*place))
        return found

    def fetch_only(self, places: Collection[Place]) -> None:
        """Fetch from these of the followed partitions; the others are paused."""
        paused = self._consumer.paused()
        wanted = {TopicPartition(*place) for place in places}
        self._consumer.pause(*(self._assigned - wanted - paused))
        self._consumer.resume(*(wanted & paused))

    async def poll(self, places: Collection[Place], *, wait_ms: int = POLL_MS) -> list[Any]:
        """The next records of `places`, as aiokafka's; none if none comes within `wait_ms`.

        Raises: OffsetsGoneError, UnreadableError, UnavailableError.
        """
        parts = [TopicPartition(*place) for place in places]
        try:
            async with asyncio.timeout(KAFKA_TIMEOUT_S):
                found = await self._consumer.getmany(
                    *parts, timeout_ms=wait_ms, max_records=MAX_POLL_RECORDS
                )
        except OffsetOutOfRangeError as problem:
            raise OffsetsGoneError(set(problem.args[0])) from problem
        except (CorruptRecordException, ValueError) as problem:
            raise UnreadableError from problem
        except (TimeoutError, KafkaError) as problem:
            raise UnavailableError("Kafka (requests)", KAFKA_TIMEOUT_S) from problem
        return [record for records in found.values() for record in records]

    async def positions(self, places: Collection[Place]) -> dict[Place, int]:
        """The next offset of each: behind markers, too."""
        return {
            place: await bounded("position", self._consumer.position(TopicPartition(*place)))
            for place in places
        }

    async def starts(self, places: Collection[Place]) -> dict[Place, int]:
        """The first offset that each has now."""
        wanted = [TopicPartition(*place) for place in places]
        found: dict[Place, int] = await bounded("offsets", self._consumer.beginning_offsets(wanted))
        return found


class OffsetsGoneError(Exception):
    """Private signal: the offsets to read on at were deleted."""

    def __init__(self, places: set[Place]) -> None:
        super().__init__(places)
        self.places = places


class UnreadableError(Exception):
    """Private signal: aiokafka cannot read what stands in one of the partitions."""


def _offset(committed: Any) -> int | None:
    return committed.offset if committed.offset >= 0 else None


async def _open_admin(settings: Settings) -> Any:
    admin = AIOKafkaAdminClient(
        **settings.kafka_options(), request_timeout_ms=int(KAFKA_TIMEOUT_S * 1000)
    )
    await start_or_close(admin.start(), lambda: _close_client(admin.close), settings)
    return admin


async def _close_client(close: Callable[[], Awaitable[None]]) -> None:
    async def closed() -> None:
        with suppress(TimeoutError, KafkaError):  # there is nothing to lose
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await close()

    await finish_despite_cancel(closed())
