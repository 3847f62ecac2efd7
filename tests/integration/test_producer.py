"""The request producer on a real broker: what stands in the log, and what happens without one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headrace.consumers.kafka_reader import as_record
from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.topics import ensure_topics
from headrace.producers import request_producer
from headrace.producers.outgoing import TopicMissingError
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.control import Cancel, DeleteSession, decode_control
from headrace.schemas.errors import RequestError, UnavailableError
from headrace.schemas.headers import header_text
from headrace.schemas.request import decode_request
from headrace.schemas.settings import Settings, load_settings
from headrace.schemas.topics import partition_of

pytestmark = pytest.mark.integration

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics of this test's own."""
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=6)
    return settings


@pytest.fixture
async def producer(settings: Settings) -> AsyncIterator[RequestProducer]:
    """A started producer."""
    producer = RequestProducer(settings, source="headrace/test")
    await producer.start()
    yield producer
    await producer.stop()


async def record_at(settings: Settings, topic: str, place: tuple[int, int]) -> Any:
    """The record at (partition, offset)."""
    consumer = AIOKafkaConsumer(**settings.kafka_options(), auto_offset_reset="earliest")
    await consumer.start()
    try:
        partition = TopicPartition(topic, place[0])
        consumer.assign([partition])
        consumer.seek(partition, place[1])
        return await consumer.getone()
    finally:
        await consumer.stop()


async def test_a_request_is_read_as_it_was_meant(
    settings: Settings, producer: RequestProducer
) -> None:
    """Key, tenant, id, body and trace come out of a worker's decoder as they went in."""
    trace = [("traceparent", b"00-1-2-01"), ("cookie", b"secret")]
    body = {**HELLO, "request_id": "r1", "max_tokens": 7, "tenant": "somebody-else"}
    place = await producer.submit(body, tenant="acme", session_id="s-ä", trace=trace)
    found = await record_at(settings, settings.topics.requests, place)

    decoded = decode_request(as_record(found))
    assert decoded.error is None
    assert decoded.request is not None
    assert decoded.request.max_tokens == 7
    assert (decoded.request_id, decoded.session_id, decoded.tenant) == ("r1", "s-ä", "acme")
    assert found.key == "s-ä".encode()
    assert header_text(found.headers, "traceparent") == "00-1-2-01"
    assert header_text(found.headers, "cookie") is None


async def test_records_carry_the_cloud_event_attributes(
    settings: Settings, producer: RequestProducer
) -> None:
    """Contract §1, for a request and for a control record."""
    body = {**HELLO, "request_id": "r1"}
    place = await producer.submit(body, session_id="s1")
    request = await record_at(settings, settings.topics.requests, place)
    place = await producer.cancel("r1", session_id="s1")
    control = await record_at(settings, settings.topics.control, place)

    for found, kind in ((request, "generation.requested"), (control, "control")):
        assert header_text(found.headers, "ce_type") == f"headrace.{kind}.v1"
        assert header_text(found.headers, "ce_specversion") == "1.0"
        assert header_text(found.headers, "ce_source") == "headrace/test"
        assert header_text(found.headers, "ce_subject") == "s1"
        assert header_text(found.headers, "content-type") == "application/json"
        assert header_text(found.headers, "ce_id")
    assert header_text(request.headers, "ce_id") == "r1"


async def test_a_session_has_one_partition_number_in_requests_and_control(
    settings: Settings, producer: RequestProducer
) -> None:
    """Cases B1 and B3: the key alone decides, and it is the same for all records of a session."""
    for session_id in ("s", "s1", "Sitzung-ä-日本", "x" * 512):
        request, _ = await producer.submit(HELLO, session_id=session_id)
        cancel, _ = await producer.cancel("r1", session_id=session_id)
        delete, _ = await producer.delete_session(session_id)
        assert {request, cancel, delete} == {partition_of(session_id.encode(), 6)}


async def test_control_records_are_read_as_they_were_meant(
    settings: Settings, producer: RequestProducer
) -> None:
    """Both actions, with their tenant."""
    place = await producer.cancel("r1", session_id="s1", tenant="acme")
    found = await record_at(settings, settings.topics.control, place)
    assert decode_control(found.value) == Cancel(request_id="r1", session_id="s1", tenant="acme")
    place = await producer.delete_session("s1", "acme")
    found = await record_at(settings, settings.topics.control, place)
    assert decode_control(found.value) == DeleteSession(session_id="s1", tenant="acme")


async def test_requests_of_one_session_keep_their_order(
    settings: Settings, producer: RequestProducer
) -> None:
    """Many at once: those handed over first stand first in the log."""
    async with asyncio.TaskGroup() as tasks:
        sent = [
            tasks.create_task(producer.submit({**HELLO, "request_id": str(n)}, session_id="s1"))
            for n in range(50)
        ]
    assert [task.result()[1] for task in sent] == list(range(50))


async def test_a_record_that_the_broker_refuses_does_not_block_the_next(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """Too large for a topic that others made: refused, and the partition takes records after it.

    An idempotent producer would go on with a hole in its count, and be refused for ever.
    """
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    topic = NewTopic(settings.topics.requests, 1, 1, topic_configs={"max.message.bytes": "2000"})
    admin = AIOKafkaAdminClient(**settings.kafka_options())
    await admin.start()
    await admin.create_topics([topic])
    await admin.close()
    await ensure_topics(settings, partitions=1)
    producer = RequestProducer(settings)
    await producer.start()
    try:
        body = {"messages": [{"role": "user", "content": "x" * 5_000}]}
        for expected in range(3):
            with pytest.raises(RequestError, match="more than topic"):
                await producer.submit(body, session_id="s1")
            assert await producer.submit(HELLO, session_id="s1") == (0, expected)
    finally:
        await producer.stop()


async def test_missing_topics_say_how_to_create_them(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """The commonest mistake of a first try."""
    producer = RequestProducer(load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix))
    with pytest.raises(TopicMissingError, match="topics create"):
        await producer.start()


async def test_a_broker_that_is_away_at_the_start_is_one_clear_error() -> None:
    """Within the connect timeout, and nothing stays open."""
    producer = RequestProducer(load_settings(kafka="127.0.0.1:1"))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 gave no answer within 10 s"):
        await producer.start()


@pytest.mark.timeout(90)
async def test_a_broker_that_goes_away_fails_in_time_and_serves_again_after(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded while it is away; the same producer goes on when it is back (cases D2)."""
    monkeypatch.setattr(request_producer, "PRODUCE_TIMEOUT_S", 2.0)
    kafka = EmbeddedKafka(tmp_path_factory.mktemp("broker"))
    await asyncio.to_thread(kafka.start)
    settings = load_settings(kafka=kafka.bootstrap)
    producer = RequestProducer(settings)
    try:
        await ensure_topics(settings, partitions=1)
        await producer.start()
        await producer.submit({**HELLO, "request_id": "r1"}, session_id="s1")
        await asyncio.to_thread(kafka.kill)
        with pytest.raises(UnavailableError):
            await producer.submit({**HELLO, "request_id": "r2"}, session_id="s1")
        await asyncio.to_thread(kafka.start)
        async with asyncio.timeout(30):
            while True:
                try:
                    await producer.submit({**HELLO, "request_id": "r3"}, session_id="s1")
                    break
                except UnavailableError:
                    continue
    finally:
        await producer.stop()
        await asyncio.to_thread(kafka.stop)
