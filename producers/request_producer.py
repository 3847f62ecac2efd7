"""The one way in which our own processes write requests and control records.

Owns a Kafka producer, the headers and the key of what it writes, and bounded waits. Does not read
replies, and does not know who may write: the tenant comes in from somebody who checked it.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)

from headrace.producers.outgoing import OutgoingRecord, close_producer, partitions_of
from headrace.schemas.control import decode_control
from headrace.schemas.dead_letter import Retry
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError, UnavailableError
from headrace.schemas.headers import EventType, Headers, cloud_event_headers, trace_headers
from headrace.schemas.request import DEFAULT_TENANT, validate_request
from headrace.schemas.settings import Settings

CONNECT_TIMEOUT_S = 10.0
CONNECT_PAUSE_S = 0.5
PRODUCE_TIMEOUT_S = 20.0

_log = structlog.get_logger(__name__)

# NOTE: an idempotent producer counts records per partition. One that the broker refuses for good
# leaves a hole in that count, and all after it are refused too, so such a producer is replaced.
_LOST_COUNT = (OutOfOrderSequenceNumber, UnknownProducerId)


class ProduceError(HeadraceError):
    """Kafka refused a record for good, e.g. for lack of a permission."""


class RequestProducer:
    """Writes requests and control records: acks=all, idempotent, keyed by session.

    Delivery: one record per call. After `UnavailableError` it may still be written once the broker
    is back; a caller that repeats it gives the same `request_id`, of which the first record counts.
    """

    def __init__(self, settings: Settings, *, source: str = "headrace/producer") -> None:
        """`source` becomes the `ce_source` of each record."""
        self._settings = settings
        self._source = source
        self._producer: AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        """Connect to Kafka and look whether the topic of requests is there.

        Raises: UnavailableError when it does not answer within 10 s, or has no such topic.
        Cancel: safe; nothing stays open.
        """
        producer = await self._connect()
        try:
            await self._require_topic(producer, self._settings.topics.requests)
        except BaseException:
            await close_producer(producer)
            raise
        self._producer = producer

    async def stop(self) -> None:
        """Hand over what is still buffered, for at most 5 s, and disconnect. Safe to call twice."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)

    async def submit(
        self,
        body: Mapping[str, Any],
        *,
        tenant: str = DEFAULT_TENANT,
        session_id: str,
        trace: Headers = (),
    ) -> tuple[int, int]:
        """Write a request; returns its (partition, offset), of which its default id is made.

        `body` is contract §2; a `tenant` in it gives way to the argument. Of `trace`, the W3C
        headers go on.
        Raises: RequestError (not valid, too large, another session), UnavailableError (a retry may
        help), ProduceError (Kafka said no).
        Delivery: as the class says; idempotent by `request_id`.
        Cancel: the record may have been written.
        """
        if body.get("session_id") not in (None, session_id):
            text = "session_id in the body and of the record must be the same"
            raise RequestError(ErrorCode.SESSION_KEY_MISMATCH, text, "session_id")
        content = {**body, "session_id": session_id, "tenant": tenant}
        request = validate_request(content)
        value = _encode(content)
        headers = self._headers(EventType.REQUESTED, request.request_id, session_id)
        headers += [("headrace-tenant", tenant.encode("utf-8")), *trace_headers(trace)]
        record = OutgoingRecord(self._settings.topics.requests, session_id.encode(), value, headers)
        self._check_size(record)
        return await self._produce(record)

    async def cancel(
        self, request_id: str, *, session_id: str, tenant: str = DEFAULT_TENANT
    ) -> tuple[int, int]:
        """Ask for the end of a generation, read already or not; returns (partition, offset).

        Raises, Delivery, Cancel: as `submit`; repeating it does no harm.
        """
        body = {"action": "cancel", "request_id": request_id}
        return await self._control(body, session_id, tenant)

    async def delete_session(
        self, session_id: str, tenant: str = DEFAULT_TENANT
    ) -> tuple[int, int]:
        """Ask for a conversation to be forgotten once this is read; returns (partition, offset).

        Raises, Delivery, Cancel: as `submit`; repeating it does no harm.
        """
        return await self._control({"action": "delete_session"}, session_id, tenant)

    async def resubmit(self, retry: Retry) -> tuple[int, int]:
        """Write a dead letter's request once more; returns (partition, offset).

        Raises: UnavailableError (a retry may help), ProduceError (too large, or Kafka said no).
        Delivery: at-least-once, idempotent by `retry.request_id`. Cancel: as `submit`.
        """
        topic = self._settings.topics.requests
        partition = await self._if_there(topic, retry.partition)
        try:
            return await self._produce(
                OutgoingRecord(topic, retry.key, retry.value, retry.headers, partition)
            )
        except RequestError as problem:
            raise ProduceError(str(problem)) from problem

    async def _if_there(self, topic: str, partition: int | None) -> int | None:
        """`partition` if `topic` has it; else the client library chooses one."""
        if partition is None or self._producer is None:
            return None
        numbers = await self._require_topic(self._producer, topic)
        return partition if partition in numbers else None

    async def _control(self, body: dict[str, str], session_id: str, tenant: str) -> tuple[int, int]:
        value = _encode({**body, "session_id": session_id, "tenant": tenant})
        decode_control(value)
        headers = self._headers(EventType.CONTROL, None, session_id)
        headers.append(("headrace-tenant", tenant.encode("utf-8")))
        record = OutgoingRecord(self._settings.topics.control, session_id.encode(), value, headers)
        self._check_size(record)
        return await self._produce(record)

    def _headers(
        self, kind: EventType, event_id: str | None, session_id: str
    ) -> list[tuple[str, bytes]]:
        return cloud_event_headers(
            kind,
            event_id=event_id or uuid.uuid4().hex,
            source=self._source,
            subject=session_id,
            time_s=time.time(),
        )

    async def _produce(self, record: OutgoingRecord) -> tuple[int, int]:
        producer = self._producer
        if producer is None:
            raise RuntimeError("the producer is not started")
        try:
            return await self._send(producer, record)
        except _LOST_COUNT as problem:
            _log.warning("producer.replaced", reason=type(problem).__name__)
            producer = await self._replace(producer)
        try:  # the broker refused the first try, so this is not a second copy
            return await self._send(producer, record)
        except _LOST_COUNT as problem:
            raise _refused(record, problem) from problem

    async def _send(self, producer: AIOKafkaProducer, record: OutgoingRecord) -> tuple[int, int]:
        await self._require_topic(producer, record.topic)
        try:
            async with asyncio.timeout(PRODUCE_TIMEOUT_S):
                written = await producer.send_and_wait(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    headers=record.headers,
                )
        except (TimeoutError, KafkaConnectionError) as problem:
            raise UnavailableError(self._broker, PRODUCE_TIMEOUT_S) from problem
        except _LOST_COUNT:
            raise
        except MessageSizeTooLargeError as problem:
            await self._replace(producer)
            size_bytes = len(record.value or b"")
            text = f"{size_bytes} bytes are more than topic {record.topic} takes"
            raise RequestError(ErrorCode.INVALID_VALUE, text) from problem
        except KafkaError as problem:
            if problem.retriable:
                raise UnavailableError(self._broker, PRODUCE_TIMEOUT_S) from problem
            await self._replace(producer)
            raise _refused(record, problem) from problem
        return written.partition, written.offset

    async def _require_topic(self, producer: AIOKafkaProducer, topic: str) -> set[int]:
        return await partitions_of(producer, topic, self._settings)

    def _check_size(self, record: OutgoingRecord) -> None:
        size_bytes = record.size_bytes
        if size_bytes > self._settings.max_request_bytes:
            text = f"{size_bytes} bytes; at most {self._settings.max_request_bytes} are taken"
            raise RequestError(ErrorCode.INVALID_VALUE, text)

    @property
    def _broker(self) -> str:
        return f"Kafka at {self._settings.kafka}"

    async def _replace(self, broken: AIOKafkaProducer) -> AIOKafkaProducer:
        """A producer that counts from the start; several callers that saw `broken` share one."""
        async with self._replacing:
            if self._producer is broken:
                self._producer = await self._connect()
                await close_producer(broken)
            if self._producer is None:
                raise UnavailableError(self._broker, CONNECT_TIMEOUT_S)
            return self._producer

    async def _connect(self) -> AIOKafkaProducer:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while True:
                    producer = self._new_producer()
                    try:
                        await producer.start()
                        return producer
                    except KafkaConnectionError:
                        await close_producer(producer)
                        await asyncio.sleep(CONNECT_PAUSE_S)
                    except BaseException:
                        await close_producer(producer)
                        raise
        except TimeoutError as problem:
            raise UnavailableError(self._broker, CONNECT_TIMEOUT_S) from problem
        except KafkaError as problem:
            raise ProduceError(f"{self._broker} refused us: {problem!r}") from problem

    def _new_producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **self._settings.kafka_options(),
            client_id="headrace-producer",
            acks="all",
            enable_idempotence=True,
            max_request_size=self._settings.max_record_bytes,
            request_timeout_ms=int(PRODUCE_TIMEOUT_S * 1000),
        )


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as problem:  # orjson's error is one: half a surrogate pair, or no JSON value
        raise RequestError(ErrorCode.INVALID_TEXT, str(problem)) from problem


def _refused(record: OutgoingRecord, problem: KafkaError) -> ProduceError:
    return ProduceError(f"Kafka refused a record for {record.topic}: {problem!r}")
