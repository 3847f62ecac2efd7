"""Reads all responses and dead letters into the book, through everything that happens to Kafka."""

import asyncio
import time

import orjson
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from headrace.schemas.settings import Settings
from tests.chaos.book import Asked, AskedKind, Book
from tests.chaos.client import Client

POLL_S = 0.2
OFFSETS_LIMIT_S = 30.0


class Reader:
    """One consumer of the response and the dead-letter topic."""

    def __init__(self, settings: Settings, client: Client, book: Book) -> None:
        self._settings, self._client, self._book = settings, client, book
        self._consumer = AIOKafkaConsumer(
            **settings.kafka_options(), auto_offset_reset="earliest", max_poll_records=500
        )
        self._num_ended = 0

    async def start(self) -> None:
        await self._consumer.start()
        topics = self._settings.topics
        self._consumer.assign(
            [*await self._places(topics.responses), *await self._places(topics.dlq)]
        )

    async def stop(self) -> None:
        await self._consumer.stop()

    async def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in await self._client.partitions(topic)]

    async def read_for_ever(self) -> None:
        """Cancel: safe."""
        async for record in self._consumer:
            if record.topic == self._settings.topics.dlq:
                headers = {name: value or b"" for name, value in record.headers}
                self._book.dead_letters.append((record.value or b"", headers))
            else:
                self._take(record)

    def _take(self, record: ConsumerRecord) -> None:
        event = orjson.loads(record.value)
        asked = self._book.asked.get(event["id"])
        if asked is None:  # of a record whose place is not known here yet, or of nobody's
            asked = Asked(event["id"], event["session_id"], AskedKind.POISON, time.monotonic())
            self._book.asked[event["id"]] = asked
            self._book.strays.add(event["id"])
        pid = int(dict(record.headers)["headrace-worker"].rpartition(b":")[2])
        self._book.last_publisher = pid
        asked.reply.watch(event, pid)
        if asked.reply.reader.finished and not asked.finished.is_set():
            asked.order = self._num_ended
            self._num_ended += 1
            asked.finished.set()

    async def to_the_end(self) -> None:
        """Wait until all that stands in the topics now was read. Raises: TimeoutError."""
        places = sorted(self._consumer.assignment())
        async with asyncio.timeout(OFFSETS_LIMIT_S):
            ends = await self._consumer.end_offsets(places)
            for place in places:
                while await self._consumer.position(place) < ends[place]:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)

    async def uncommitted(self) -> dict[str, tuple[int | None, int]]:
        """Partitions of requests and control whose committed offset is not their end."""
        topics = self._settings.topics
        admin = AIOKafkaAdminClient(**self._settings.kafka_options())
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets(self._settings.group)
        finally:
            await admin.close()
        places = [*await self._places(topics.requests), *await self._places(topics.control)]
        ends = await self._consumer.end_offsets(places)
        left = {}
        for place in places:
            committed = found[place].offset if place in found else None
            if (committed or 0) != ends[place]:
                left[f"{place.topic}-{place.partition}"] = (committed, ends[place])
        return left

    async def all_committed(self, *, timeout_s: float) -> dict[str, tuple[int | None, int]]:
        """Wait until nothing is left; what is left after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while left := await self.uncommitted():
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(POLL_S)
        return left
