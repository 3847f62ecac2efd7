"""Writes records as they are: key, value, headers, partition, and time if one is given.

Owns a Kafka producer, the order within a partition, and how much may be unacknowledged. Does not
know what the records are.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError

from headrace.producers.outgoing import OutgoingRecord, close_producer, partitions_of
from headrace.producers.request_producer import ProduceError
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
ACK_TIMEOUT_S = 30.0

MAX_UNACKNOWLEDGED = 500
"""Enough to fill batches of usual requests."""


class RecordWriter:
    """Hands records to an idempotent producer, in order, without waiting for each.

    Delivery: one record per `write`; after an error what was written before may or may not stand.
    """

    def __init__(self, settings: Settings, producer: AIOKafkaProducer) -> None:
        self._settings, self._producer = settings, producer
        self._room = asyncio.Semaphore(MAX_UNACKNOWLEDGED)
        self._problem: BaseException | None = None

    async def num_partitions(self, topic: str) -> int:
        """How many partitions `topic` has. Raises: TopicMissingError."""
        return len(await partitions_of(self._producer, topic, self._settings))

    async def write(self, record: OutgoingRecord, *, timestamp_ms: int | None = None) -> None:
        """Hand a record over; its time is now unless one is given.

        Raises: UnavailableError, ProduceError: for this record or an earlier one.
        Cancel: the record may have been written.
        """
        await self._within(self._room.acquire())
        self._check()
        try:
            written = await self._within(self._send(record, timestamp_ms))
        except BaseException:
            self._room.release()
            raise
        written.add_done_callback(self._on_done)

    async def _send(
        self, record: OutgoingRecord, timestamp_ms: int | None
    ) -> "asyncio.Future[object]":
        if record.key is None and record.value is None and record.partition is not None:
            return await self._send_nothing(record, record.partition, timestamp_ms)
        written: asyncio.Future[object] = await self._producer.send(
            record.topic,
            record.value,
            record.key,
            record.partition,
            timestamp_ms=timestamp_ms,
            headers=list(record.headers),
        )
        return written

    async def _send_nothing(
        self, record: OutgoingRecord, partition: int, timestamp_ms: int | None
    ) -> "asyncio.Future[object]":
        """A record without key and value: other clients write them, and aiokafka does so in a batch
        only.
        """
        batch = self._producer.create_batch()
        headers = list(record.headers)
        batch.append(key=None, value=None, timestamp=timestamp_ms, headers=headers)
        batch.close()
        written: asyncio.Future[object] = await self._producer.send_batch(
            batch, record.topic, partition=partition
        )
        return written

    async def flush(self) -> None:
        """Wait until all is acknowledged. Raises: UnavailableError, ProduceError."""
        await self._within(self._producer.flush())
        self._check()

    def _on_done(self, written: "asyncio.Future[object]") -> None:
        self._room.release()
        if not written.cancelled():
            self._problem = self._problem or written.exception()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._translated(self._problem) from self._problem

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                return await work
        except (TimeoutError, KafkaError) as problem:
            raise self._translated(problem) from problem

    def _translated(self, problem: BaseException) -> UnavailableError | ProduceError:
        retriable = isinstance(problem, KafkaError) and problem.retriable
        if retriable or isinstance(problem, TimeoutError | KafkaConnectionError):
            return UnavailableError(f"Kafka at {self._settings.kafka}", ACK_TIMEOUT_S)
        return ProduceError(f"Kafka refused a record: {problem!r}")


@asynccontextmanager
async def writing(settings: Settings) -> AsyncIterator[RecordWriter]:
    """A writer around a block; what is still buffered at its end is sent. Raises:
    UnavailableError.
    """
    producer = AIOKafkaProducer(
        **settings.kafka_options(),
        client_id="headrace-replay",
        acks="all",
        enable_idempotence=True,
        max_request_size=settings.max_response_bytes,
        request_timeout_ms=int(ACK_TIMEOUT_S * 1000),
    )
    try:
        await _start(producer, settings)
        yield RecordWriter(settings, producer)
    finally:
        await close_producer(producer)


async def _start(producer: AIOKafkaProducer, settings: Settings) -> None:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await producer.start()
    except (TimeoutError, KafkaError) as problem:
        raise UnavailableError(f"Kafka at {settings.kafka}", CONNECT_TIMEOUT_S) from problem
