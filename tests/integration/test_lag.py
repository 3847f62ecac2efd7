"""The lag service on real Kafka: right to the record, whatever stands in the log."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.consumer import fetcher
from aiokafka.record import MemoryRecords

from headrace.consumers import kafka_reader
from headrace.consumers.lag import Lag, PartitionLag
from headrace.consumers.lag_service import CATCH_UP_S, LagService
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from tests.odd_headers import send_odd
from tests.producing import producing
from tests.unit.consumers.doubles import ResponseWriter, answer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]

NUM_PARTITIONS = 3
BODY = orjson.dumps({"prompt": "x" * 40, "max_tokens": 20})
"""10 tokens and an answer of at most 20."""


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Topics and a group that no other test uses."""
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, group=topic_prefix)
    await ensure_topics(settings, partitions=NUM_PARTITIONS)
    return settings


@pytest.fixture
async def service(settings: Settings) -> AsyncIterator[LagService]:
    service = LagService(settings)
    await service.start()
    yield service
    await service.stop()


async def _write(
    producer: AIOKafkaProducer,
    settings: Settings,
    count: int,
    *,
    partition: int = 0,
    topic: str | None = None,
    values: Sequence[bytes | None] = (BODY,),
    timestamp_ms: int | None = None,
) -> None:
    topic = topic or settings.topics.requests
    for number in range(count):
        value = values[number % len(values)]
        await producer.send(topic, value, key=b"s", partition=partition, timestamp_ms=timestamp_ms)
    await producer.flush()


async def _fill(settings: Settings, count: int, **where: Any) -> None:
    async with producing(settings) as producer:
        await _write(producer, settings, count, **where)


async def _commit(settings: Settings, offset: int, *, partition: int = 0) -> None:
    """As the group would; nobody is in it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka, group_id=settings.group, enable_auto_commit=False
    )
    await consumer.start()
    part = TopicPartition(settings.topics.requests, partition)
    try:
        consumer.assign([part])
        await consumer.commit({part: offset})
    finally:
        await consumer.stop()


@asynccontextmanager
async def _admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def _of(lag: Lag, partition: int = 0, topic: str = "requests") -> PartitionLag:
    (found,) = [
        one
        for one in lag.partitions
        if one.partition == partition and one.topic.endswith(f".{topic}")
    ]
    return found


async def test_without_group_worker_or_request_every_partition_has_a_value(
    service: LagService, settings: Settings
) -> None:
    """Zeros for each partition of both topics, and no committed offset (cases K1)."""
    lag = await service.read()
    expected = [
        PartitionLag(topic, partition, 0, 0.0, 0, None, 0, 0)
        for topic in (settings.topics.control, settings.topics.requests)
        for partition in range(NUM_PARTITIONS)
    ]
    assert list(lag.partitions) == expected


async def test_no_group_and_no_worker_everything_counts(
    service: LagService, settings: Settings
) -> None:
    """500 requests wait: right to the record, with the age of the oldest and the work (K8)."""
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    await _fill(settings, 200, partition=0)
    await _fill(settings, 1, partition=1, timestamp_ms=hour_ago_ms)
    await _fill(settings, 299, partition=1, values=[BODY, None, b"poison"])
    await _fill(settings, 7, partition=2, topic=settings.topics.control)
    lag = await service.read()
    requests = lag.of(settings.topics.requests)
    assert [one.records for one in requests.partitions] == [200, 300, 0]
    assert [one.tokens for one in requests.partitions] == [200 * 30, (1 + 100) * 30, 0]
    assert 3600 <= requests.seconds < 3630
    assert 0 <= requests.partitions[0].seconds < 30
    control = lag.of(settings.topics.control)
    assert [(one.records, one.tokens) for one in control.partitions] == [(0, 0), (0, 0), (7, 0)]


async def test_committed_in_the_middle_and_at_the_end(
    service: LagService, settings: Settings
) -> None:
    """As Kafka's own tool has it where no markers stand: end less committed."""
    await _fill(settings, 10)
    for offset in (4, 9, 10):
        await _commit(settings, offset)
        one = _of(await service.read())
        assert (one.committed, one.end, one.records) == (offset, 10, 10 - offset)
        assert one.tokens == 30 * (10 - offset)
    assert one.seconds == 0.0


async def test_what_comes_later_is_counted_by_the_next_reading(
    service: LagService, settings: Settings
) -> None:
    """The service goes on where it was."""
    for total in (3, 6, 9):
        await _fill(settings, 3, partition=1)
        assert _of(await service.read(), 1).records == total


async def test_a_group_that_is_set_back_has_its_work_again(
    service: LagService, settings: Settings
) -> None:
    """Somebody moved the committed offset from 8 to 2."""
    await _fill(settings, 10)
    for offset in (8, 2):
        await _commit(settings, offset)
        assert _of(await service.read()).records == 10 - offset


async def test_a_truncated_log_counts_from_its_start(
    service: LagService, settings: Settings
) -> None:
    """Committed is 2, and everything before 6 was deleted."""
    await _fill(settings, 10)
    await _commit(settings, 2)
    assert _of(await service.read()).records == 8
    async with _admin(settings) as admin:
        part = TopicPartition(settings.topics.requests, 0)
        await admin.delete_records({part: RecordsToDelete(before_offset=6)})
    one = _of(await service.read())
    assert (one.start, one.committed, one.records, one.tokens) == (6, 2, 4, 120)


async def test_a_committed_offset_beyond_the_log_counts_from_its_start(
    service: LagService, settings: Settings
) -> None:
    """As after a topic was made anew: a worker begins at the start, too."""
    await _fill(settings, 5)
    await _commit(settings, 100)
    for _ in range(2):
        one = _of(await service.read())
        assert (one.committed, one.records, one.tokens) == (100, 5, 150)


async def test_markers_and_aborted_records_do_not_count(
    service: LagService, settings: Settings
) -> None:
    """Three transactions, the middle one aborted; 8 records in 15 offsets."""
    async with producing(settings, transactional_id=f"{settings.group}-t") as producer:
        for count, aborted in ((3, False), (4, True), (5, False)):
            await producer.begin_transaction()
            await _write(producer, settings, count)
            await (producer.abort_transaction() if aborted else producer.commit_transaction())
        one = _of(await service.read())
        assert (one.end, one.records, one.tokens) == (15, 8, 240)
        await _commit(settings, 4)  # behind the first transaction's marker
        assert _of(await service.read()).records == 5
        await _commit(settings, 14)  # only the last marker is behind it
        one = _of(await service.read())
        assert (one.records, one.seconds, one.tokens) == (0, 0.0, 0)


async def test_an_open_transaction_is_not_there_yet(
    service: LagService, settings: Settings
) -> None:
    """Neither what it holds nor what stands behind it, until it is committed; an offset in it that
    was committed by hand is none of another log.
    """
    await _fill(settings, 2)
    async with producing(settings, transactional_id=f"{settings.group}-t") as producer:
        await producer.begin_transaction()
        await _write(producer, settings, 3)
        await _fill(settings, 4)
        assert (_of(await service.read()).end, _of(await service.read()).records) == (2, 2)
        await _commit(settings, 5)
        assert _of(await service.read()).records == 0
        await producer.commit_transaction()
    one = _of(await service.read())
    assert (one.end, one.records) == (10, 4)


async def test_a_topic_made_anew_is_counted_anew(service: LagService, settings: Settings) -> None:
    """The readings go on by themselves; while the topic is missing they say so."""
    await _fill(settings, 9)
    await _commit(settings, 7)
    assert _of(await service.read()).records == 2
    async with _admin(settings) as admin:
        await admin.delete_topics([settings.topics.requests])
    with pytest.raises(UnavailableError, match="headrace topics create"):
        await _until_unavailable(service)
    await ensure_topics(settings, partitions=NUM_PARTITIONS)
    await _fill(settings, 4)
    one = _of(await service.read())
    assert (one.end, one.records) == (4, 4)


async def _until_unavailable(service: LagService) -> None:
    async with asyncio.timeout(10):
        while True:
            await service.read()
            await asyncio.sleep(0.05)


async def _write_odd(settings: Settings) -> None:
    """A record whose header's name is no UTF-8, as clients in other languages may write it."""
    async with producing(settings) as producer:
        await send_odd(producer, settings.topics.requests, 0, [BODY], odd={0})


async def test_a_record_with_any_header_name_is_read(
    service: LagService, settings: Settings
) -> None:
    """Its work is counted from what it says."""
    await _write_odd(settings)
    assert _of(await service.read()).tokens == 10 + 20


async def test_a_record_that_cannot_be_read_is_counted_by_offsets(
    service: LagService, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka ends at it; the other partitions are read, and it is not tried again and again."""
    monkeypatch.setattr(kafka_reader, "read_any_header_name", lambda: None)
    monkeypatch.setattr(fetcher, "MemoryRecords", MemoryRecords)
    await _write_odd(settings)
    await _fill(settings, 3, partition=1)
    for _ in range(2):
        started_s = time.monotonic()
        lag = await service.read()
        assert [one.records for one in lag.of(settings.topics.requests).partitions] == [1, 3, 0]
    assert time.monotonic() - started_s < CATCH_UP_S


@pytest.mark.parametrize("partition", [0, 2])
async def test_answers_are_expected_to_be_as_long_as_the_last_ones(
    service: LagService, settings: Settings, partition: int
) -> None:
    """A request with room for 1,000 tokens, where answers had 3."""
    async with ResponseWriter(settings) as responses:
        for value in answer("r1", "s1", ["a", "b", "c"]):
            await responses.write(value, session_id="s1", partition=partition)
    await _fill(settings, 1, values=[orjson.dumps({"prompt": "x" * 40, "max_tokens": 1000})])
    assert _of(await service.read()).tokens == 10 + 3


async def test_partitions_that_are_added_are_read(service: LagService, settings: Settings) -> None:
    """At the next reading."""
    await _fill(settings, 2)
    await service.read()
    async with _admin(settings) as admin:
        await admin.create_partitions({settings.topics.requests: NewPartitions(total_count=5)})
    await _fill(settings, 6, partition=4)
    lag = await _until_partitions(service, settings, 5)
    assert [one.records for one in lag.partitions] == [2, 0, 0, 0, 6]


async def _until_partitions(service: LagService, settings: Settings, count: int) -> Lag:
    async with asyncio.timeout(10):
        while True:
            lag = (await service.read()).of(settings.topics.requests)
            if len(lag.partitions) == count:
                return lag
            await asyncio.sleep(0.05)


async def test_it_is_no_member_of_the_group(service: LagService, settings: Settings) -> None:
    """A group that was never there is not made by reading its lag."""
    await service.read()
    async with _admin(settings) as admin:
        groups = [name for name, _ in await admin.list_consumer_groups()]
    assert settings.group not in groups


async def test_without_kafka_it_says_so_and_goes_on_later() -> None:
    """Nobody listens there: an error within the bound, as often as it is asked."""
    service = LagService(Settings(kafka="127.0.0.1:1"))
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
            await service.read()
    await service.stop()
