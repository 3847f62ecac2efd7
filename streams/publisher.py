"""Step 8: response events and dead letters to Kafka, by our own idempotent producer.

A refused or failed send is fatal for the process: what is journaled is published by the next
owner, while going on here could leave a hole in a stream.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from headrace.schemas.dead_letter import HEADER_PREFIX
from headrace.schemas.event import Event
from headrace.schemas.headers import cloud_event_headers, trace_headers
from headrace.schemas.request import DecodedRequest, Record
from headrace.schemas.settings import RECORD_OVERHEAD_BYTES, Settings
from headrace.streams.generation import Generation
from headrace.streams.kafka import keep_through_outages

SEND_TIMEOUT_S = 30.0

log = structlog.get_logger(__name__)


class Publisher:
    """Sends the events of generations and notes what the broker acknowledged.

    `on_acknowledged(generation)` is called for each acknowledged event, `on_failure(error)` once.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        worker_name: str,
        on_acknowledged: Callable[[Generation], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._max_event_bytes = settings.max_response_bytes - RECORD_OVERHEAD_BYTES
        self._worker_name = worker_name.encode()
        self._on_acknowledged, self._on_failure = on_acknowledged, on_failure
        self._producer: AIOKafkaProducer | None = None
        self._has_failed = False

    async def start(self) -> None:
        self._producer = AIOKafkaProducer(
            **self._settings.kafka_options(),
            client_id="headrace-worker",
            acks="all",
            enable_idempotence=True,  # in order and once, through broker restarts of any length
            linger_ms=0,  # the flush tick is the batch
            max_request_size=self._settings.max_response_bytes,  # as the topics have it
        )
        await self._producer.start()
        keep_through_outages(self._producer)

    async def stop(self) -> None:
        """Send what is buffered and close. Bounded by SEND_TIMEOUT_S."""
        if self._producer is not None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._producer.stop()

    async def num_partitions(self, topic: str) -> int:
        """How many partitions `topic` has; 0 if it does not exist."""
        assert self._producer is not None, "start() comes first"  # noqa: S101
        await self._producer.client.force_metadata_update()
        return len(self._producer.client.cluster.partitions_for_topic(topic) or ())

    async def publish(self, generation: Generation) -> None:
        """publish: hand every publishable event to the producer, in order.

        Delivery: at least once; (id, attempt, sequence_number) is the reader's key.
        Cancel: events not handed over yet are published by the next owner.
        """
        if self._has_failed:
            return  # what follows an event that Kafka refused would leave a gap
        attempt = generation.attempt
        for event in generation.take_publishable(self._max_event_bytes):
            future = await self._send(generation.decoded, attempt, event)
            future.add_done_callback(
                partial(
                    self._acknowledge,
                    generation=generation,
                    attempt=attempt,
                    number=event.sequence_number,
                )
            )

    def _acknowledge(
        self, done: "asyncio.Future[object]", generation: Generation, attempt: int, number: int
    ) -> None:
        if done.cancelled():
            return
        problem = done.exception()
        if problem is not None:
            self._has_failed = True
            self._on_failure(problem)
        elif generation.attempt == attempt:  # else: of an attempt that was given up
            generation.acknowledged = max(generation.acknowledged, number + 1)
            self._on_acknowledged(generation)

    async def _send(
        self, decoded: DecodedRequest, attempt: int, event: Event
    ) -> "asyncio.Future[object]":
        now_s = time.time()
        headers = cloud_event_headers(
            event.kind,
            event_id=f"{decoded.request_id}:{attempt}:{event.sequence_number}",
            source=f"/{self._topics.responses}",
            subject=decoded.session_id,
            time_s=now_s,
        )
        headers += trace_headers(decoded.record.headers)
        headers.append(("headrace-tenant", decoded.tenant.encode("utf-8")))
        headers.append(("headrace-worker", self._worker_name))
        return await self._enqueue(
            self._topics.responses,
            key=decoded.session_id.encode("utf-8"),
            value=event.value,
            partition=decoded.record.partition,
            headers=headers,
        )

    async def _enqueue(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes | None]] | list[tuple[str, bytes]],
    ) -> "asyncio.Future[object]":
        """Into the producer's buffer; a full one (Kafka is away) is waited for."""
        assert self._producer is not None, "start() comes first"  # noqa: S101
        while True:
            try:
                future: asyncio.Future[object] = await self._producer.send(
                    topic, value, key=key, partition=partition, headers=headers
                )
            except KafkaTimeoutError:
                continue  # still away, nothing was taken: the order is kept by asking again
            return future

    async def dead_letter(self, record: Record, reason: str, error: str, attempts: int) -> None:
        """The original bytes, key and headers to the dead-letter topic; returns when acknowledged.

        Delivery: at least once. Raises: KafkaError.
        """
        about = {
            "reason": reason,
            "error": error[:1000],
            "topic": record.topic,
            "partition": str(record.partition),
            "offset": str(record.offset),
            "timestamp": str(record.timestamp_ms),
            "attempts": str(attempts),
        }
        kept = [header for header in record.headers if not header[0].startswith(HEADER_PREFIX)]
        added = [(HEADER_PREFIX + name, text.encode("utf-8")) for name, text in about.items()]
        try:
            future = await self._enqueue(
                self._topics.dlq,
                key=record.key,
                value=record.value,
                partition=None,
                headers=[*kept, *added],
            )
        except MessageSizeTooLargeError:
            log.error("too large for the dead-letter topic", **about)  # it stays in its own topic
            return
        try:
            await future
        except KafkaError as problem:
            self._on_failure(problem)
            raise
