"""Dead letters on real Kafka: reading them, and retries that a real worker answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.consumers import kafka_reader
from headrace.consumers.dlq_reader import (
    DeadLetterMissingError,
    DlqTopicMissingError,
    reading_dlq,
)
from headrace.consumers.gateway import build_app
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.producers.request_producer import ProduceError, RequestProducer
from headrace.schemas.dead_letter import DeadLetter, DlqPlace
from headrace.schemas.settings import Settings, load_settings
from tests.pipeline import Pipeline
from tests.producing import ended_at, producing
from tests.unit.consumers.running import running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HELLO = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4}


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics of this test's own."""
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=3)
    return settings


@asynccontextmanager
async def retry_producer(settings: Settings) -> AsyncIterator[RequestProducer]:
    producer = RequestProducer(settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def about(settings: Settings, **other: str) -> list[tuple[str, bytes]]:
    """The headers that a worker adds to a dead letter."""
    said = {
        "reason": "internal_error",
        "error": "it broke",
        "topic": settings.topics.requests,
        "partition": "1",
        "offset": "14",
        "timestamp": "1700000000000",
        "attempts": "1",
    } | other
    return [(f"headrace-dlq-{name}", text.encode()) for name, text in said.items()]


async def letters_of(settings: Settings, **options: Any) -> list[DeadLetter]:
    async with reading_dlq(settings) as reader:
        return [letter async for letter in reader.letters(**options)]


async def letter_of(settings: Settings, request_id: str) -> DeadLetter:
    (found,) = [one for one in await letters_of(settings) if one.request_id == request_id]
    return found


async def record_at(settings: Settings, topic: str, place: tuple[int, int]) -> Any:
    consumer = AIOKafkaConsumer(**settings.kafka_options())
    await consumer.start()
    try:
        part = TopicPartition(topic, place[0])
        consumer.assign([part])
        consumer.seek(part, place[1])
        async with asyncio.timeout(20):
            return await consumer.getone()
    finally:
        await consumer.stop()


RAW: Sequence[tuple[bytes | None, bytes | None]] = [
    (None, b"{"),
    (b"", b"{"),
    (b"s1", None),
    (b"s1", b""),
    (b"s1", b"null"),
    (b"\xff\xfe", b"\xff\x00\x1b"),
]


async def test_letters_are_read_as_they_lie_and_retried_as_they_came(settings: Settings) -> None:
    """Null, empty and any bytes survive both ways; nothing is added but the id."""
    own = [("traceparent", b"00-1"), ("gone", None), ("odd", b"\xff")]
    async with producing(settings) as producer:
        for number, (key, value) in enumerate(RAW):
            headers = [*own, *about(settings, offset=str(number))]
            await producer.send_and_wait(
                settings.topics.dlq, value, key=key, partition=1, headers=headers
            )
    found = await letters_of(settings)
    assert [(one.record.key, one.record.value) for one in found] == RAW
    assert [one.place for one in found] == [DlqPlace(1, number) for number in range(len(RAW))]
    async with retry_producer(settings) as retrying:
        for letter, (key, value) in zip(found, RAW, strict=True):
            retry = letter.retry(settings.topics.requests)
            place = await retrying.resubmit(retry)
            record = await record_at(settings, settings.topics.requests, place)
            assert (record.key, record.value) == (key, value)
            assert list(record.headers) == [
                *own,
                ("headrace-request-id", retry.request_id.encode()),
            ]
            if not key:
                assert place[0] == 1, "without a key it stays in its partition"


async def test_a_retry_too_large_for_the_requests_is_refused_and_the_next_one_goes(
    settings: Settings,
) -> None:
    """The dead-letter topic takes more than the request topic."""
    big = b"x" * (settings.max_record_bytes + 1)
    limit = settings.max_response_bytes
    async with producing(settings, max_request_size=limit) as producer:
        for value in (big, b"{"):
            await producer.send_and_wait(
                settings.topics.dlq, value, key=b"s1", headers=about(settings)
            )
    large, small = await letters_of(settings)
    assert large.record.value == big
    async with retry_producer(settings) as retrying:
        with pytest.raises(ProduceError, match=f"{len(big)} bytes are more"):
            await retrying.resubmit(large.retry(settings.topics.requests))
        await retrying.resubmit(small.retry(settings.topics.requests))


async def test_reading_ends_at_the_end_it_saw_also_behind_markers(settings: Settings) -> None:
    """Aborted records and transaction markers are no letters; later ones are not waited for."""
    topic = settings.topics.dlq
    async with producing(settings) as producer:
        await producer.send_and_wait(topic, b"{", partition=0, headers=about(settings))
        async with producing(settings, transactional_id=settings.topic_prefix) as other:
            await other.begin_transaction()
            await other.send_and_wait(topic, b"aborted", partition=0)
            await other.abort_transaction()
        await ended_at(settings, settings.topics.dlq, 3)
        async with reading_dlq(settings) as reader:
            assert [one.record.value async for one in reader.letters()] == [b"{"]
            await producer.send_and_wait(topic, b"later", partition=0)
            assert [one.record.value async for one in reader.letters()] == [b"{"]
            with pytest.raises(DeadLetterMissingError, match="no record has this offset"):
                await reader.letter_at(DlqPlace(0, 1))


async def test_letters_since_a_time(settings: Settings) -> None:
    """By the letter's own time."""
    start_ms = int(time.time() * 1000) - 60_000  # an older one is retention's
    async with producing(settings) as producer:
        for number in range(4):
            await producer.send_and_wait(
                settings.topics.dlq,
                b"%d" % number,
                partition=number % 2,
                timestamp_ms=start_ms + number,
                headers=about(settings),
            )
    found = await letters_of(settings, since_ms=start_ms + 2)
    assert [one.record.value for one in found] == [b"2", b"3"]
    assert await letters_of(settings, since_ms=start_ms + 10_000) == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (DlqPlace(0, 5), "partition 0 is empty now"),
        (DlqPlace(1, 1), "partition 1 holds offsets 0 to 0 now"),
        (DlqPlace(3, 0), "partitions are 0 to 2"),
    ],
)
async def test_a_place_without_a_letter_says_what_there_is(
    settings: Settings, place: DlqPlace, why: str
) -> None:
    """One clear line."""
    async with producing(settings) as producer:
        await producer.send_and_wait(settings.topics.dlq, b"x", partition=1)
    async with reading_dlq(settings) as reader:
        with pytest.raises(DeadLetterMissingError, match=f"no dead letter {place}: {why}"):
            await reader.letter_at(place)


async def test_a_missing_topic_says_how_to_create_it(
    kafka_bootstrap: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the bound."""
    monkeypatch.setattr(kafka_reader, "KAFKA_TIMEOUT_S", 1.0)
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    with pytest.raises(DlqTopicMissingError, match=r"\.dlq at .* `headrace topics create`"):
        await letters_of(settings)


@pytest.mark.asyncio(loop_scope="module")
async def test_poison_lands_here_and_its_retries_are_answered_under_their_own_ids(
    served: Pipeline,
) -> None:
    """Three rounds: each answered once, with headers that do not grow; a second try is nothing."""
    (worker,) = served.workers
    settings = served.settings
    headers = [("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")]
    first_id = await served.ask(b'{"request_id":"p1"', key="poison", headers=headers)
    await served.finished([first_id])
    names, request_id = [first_id], first_id
    async with retry_producer(settings) as retrying:
        for _ in range(3):
            letter = await letter_of(settings, request_id)
            assert (letter.reason, letter.attempts) == ("invalid_json", 1)
            assert letter.record.value == b'{"request_id":"p1"'
            retry = letter.retry(settings.topics.requests)
            assert retry.old_id == request_id
            await retrying.resubmit(retry)
            await retrying.resubmit(retry)
            await served.finished([retry.request_id])
            names.append(request_id := retry.request_id)
        await served.all_committed()
    last = await letter_of(settings, request_id)
    assert last.own_headers == (*headers, ("headrace-request-id", request_id.encode()))
    assert len(last.record.headers) == len(last.own_headers) + 7
    assert len(set(names)) == len(names)
    for name in names:
        assert served.replies[name].last["error"]["code"] == "invalid_json"
        assert served.replies[name].num_dropped == 0
    assert await worker.metric("headrace_request_duplicates_total") == 3


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("key", ["healed", None])
async def test_a_request_that_can_be_answered_now_is_answered_in_its_session(
    served: Pipeline, key: str | None
) -> None:
    """As after the bug that killed it is mended; readers of the old id have had their end."""
    settings, old_id = served.settings, f"r-{key}"
    value = orjson.dumps(HELLO | {"request_id": old_id})
    raw_key = key.encode() if key else None
    sent = await served.producer.send_and_wait(
        settings.topics.dlq, value, key=raw_key, headers=about(settings)
    )
    letter = await letter_of(settings, old_id)
    assert letter.place == DlqPlace(sent.partition, sent.offset)
    async with retry_producer(settings) as retrying:
        retry = letter.retry(settings.topics.requests)
        await retrying.resubmit(retry)
    await served.finished([retry.request_id])
    reply = served.replies[retry.request_id]
    assert reply.finish_reason == "length"
    assert reply.last["session_id"] == (key or retry.request_id)
    assert old_id not in served.replies


async def test_clients_of_the_gateway_cannot_choose_the_id_by_the_header(
    settings: Settings,
) -> None:
    """Neither a field of the body nor a header of HTTP becomes a header of the record."""
    name = "headrace-request-id"
    call = HELLO | {"request_id": "mine", name: "x", "headers": {name: "x"}, "background": True}
    log = ResponseLog(settings)
    await log.start()
    try:
        async with (
            retry_producer(settings) as requests,
            running(build_app(settings, log, requests), settings) as address,
            httpx.AsyncClient(base_url=f"http://{address}") as http,
            asyncio.TaskGroup() as tasks,
        ):
            headers = {name: "x", "baggage": f"{name}=x"}
            post = http.post("/v1/chat/completions", json=call, headers=headers)
            asking = tasks.create_task(post)  # nobody answers it
            record = await _only_record(settings)
            asking.cancel()
    finally:
        await log.stop()
    assert orjson.loads(record.value)["request_id"] == "mine"
    assert name not in dict(record.headers)


async def _only_record(settings: Settings) -> Any:
    consumer = AIOKafkaConsumer(
        settings.topics.requests, **settings.kafka_options(), auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(20):
            return await consumer.getone()
    finally:
        await consumer.stop()
