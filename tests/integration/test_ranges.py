"""Ranges of real topics: transactions, markers, times, and dumps that come back as they were."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from headrace.consumers import range_reader
from headrace.consumers.kafka_reader import find_partitions, reading
from headrace.consumers.range_reader import RangeReader, Span, readable_spans
from headrace.deploy.replaying.dump_file import check_dump, read_dump
from headrace.deploy.replaying.recording import record
from headrace.deploy.replaying.restoring import TooFewPartitionsError, restore
from headrace.deploy.replaying.selection import OffsetRange, Selection
from headrace.deploy.topics import ensure_topics
from headrace.schemas.dump import DumpRecord
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings, load_settings
from tests.producing import ended_at, producing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics of this test's own."""
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=3)
    return settings


async def put(
    producer: AIOKafkaProducer, settings: Settings, *values: bytes, part: int = 0
) -> None:
    for value in values:
        await producer.send_and_wait(settings.topics.requests, value, partition=part)


async def read(settings: Settings) -> tuple[list[bytes], dict[int, Span]]:
    """All that can be read now, and where that ends."""
    async with reading(settings, max_partition_fetch_bytes=2**20) as consumer:
        spans = await readable_spans(
            consumer, await find_partitions(consumer, settings.topics.requests)
        )
        reader = RangeReader(consumer, "requests")
        found = [one.value async for one in reader.records(spans)]
    return found, {part.partition: span for part, span in spans.items()}


async def test_an_open_transaction_ends_the_range(settings: Settings) -> None:
    """The high watermark lies behind it, and would never be reached; what follows it waits, too."""
    async with producing(settings) as plain:
        await put(plain, settings, b"1", b"2")
        async with producing(settings, transactional_id=settings.topic_prefix) as other:
            async with other.transaction():
                await put(other, settings, b"3")
                await put(plain, settings, b"4")
                began_s = time.monotonic()
                values, spans = await read(settings)
                assert (values, spans[0]) == ([b"1", b"2"], Span(0, 2))
                assert time.monotonic() - began_s < 10
            await ended_at(settings, settings.topics.requests, 5)
            assert (await read(settings))[0] == [b"1", b"2", b"3", b"4"]


async def test_markers_at_the_end_are_passed(settings: Settings) -> None:
    """The last offset is no record: of a commit, and of a transaction that was aborted."""
    async with producing(settings, transactional_id=settings.topic_prefix) as producer:
        async with producer.transaction():
            await put(producer, settings, b"1")
        await producer.begin_transaction()
        await put(producer, settings, b"aborted")
        await producer.abort_transaction()
    await ended_at(settings, settings.topics.requests, 4)
    assert (await read(settings))[0] == [b"1"]


async def test_partitions_are_merged_by_time(settings: Settings) -> None:
    """Each keeps its own order, whatever the times say."""
    now_ms = int(time.time() * 1000)
    async with producing(settings) as producer:
        for part, age_ms in ((0, 900), (0, 500), (1, 700), (1, 100), (2, 600), (2, 800)):
            await producer.send_and_wait(
                settings.topics.requests,
                str(age_ms).encode(),
                partition=part,
                timestamp_ms=now_ms - age_ms,
            )
    assert (await read(settings))[0] == [b"900", b"700", b"600", b"800", b"500", b"100"]


async def test_a_range_that_does_not_come_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how far it got."""
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT_S", 1.0)
    async with producing(settings) as producer:
        await put(producer, settings, b"1", b"2")
    async with reading(settings, max_partition_fetch_bytes=2**20) as consumer:
        part = (await find_partitions(consumer, settings.topics.requests))[0]
        records = RangeReader(consumer, "requests").records({part: Span(0, 99)})
        with pytest.raises(UnavailableError, match="requests, read up to 0-2"):
            assert [one.value async for one in records] == []


def plain(record: DumpRecord) -> DumpRecord:
    """Without its place in the topic, which is the topic's own."""
    return replace(record, offset=0)


async def put_nothing(producer: AIOKafkaProducer, topic: str, time_ms: int) -> None:
    """A record with neither key nor value, as other clients can write one."""
    batch = producer.create_batch()
    batch.append(key=None, value=None, timestamp=time_ms, headers=[("h", b"1")])
    batch.close()
    await (await producer.send_batch(batch, topic, partition=1))


async def test_a_dump_comes_back_as_it_was(settings: Settings, tmp_path: Path) -> None:
    """Null, bytes that are no text, headers, partition and time, of requests and answers."""
    path, again = tmp_path / "d.jsonl.zst", tmp_path / "e.jsonl"
    old_ms = int(time.time() * 1000) - 3_600_000
    event = (
        b'{"id":"a","object":"error","session_id":"s","attempt":1,"sequence_number":0,"error":{}}'
    )
    async with producing(settings) as producer:
        topic, headers = settings.topics.requests, [("h", b"\xff"), ("h", None), ("", b"")]
        body = b'{"request_id":"a","prompt":"x"}'
        await producer.send_and_wait(topic, body, b"s", 2, old_ms, headers)
        await producer.send_and_wait(topic, None, b"s", 2, old_ms + 1)
        await producer.send_and_wait(topic, b"\xfe{", None, 1, old_ms + 2)
        await put_nothing(producer, topic, old_ms + 3)
        await producer.send_and_wait(settings.topics.responses, event, b"s", 2, old_ms + 4)
    done = await record(settings, Selection(), path)
    assert (done.num_requests, done.num_responses, done.num_unfinished) == (2, 1, 1)
    other = load_settings(kafka=settings.kafka, topic_prefix=f"{settings.topic_prefix}.copy")
    await ensure_topics(other, partitions=2)
    with pytest.raises(TooFewPartitionsError, match="has 2 partitions, the dump needs 3"):
        await restore(other, path)
    target = load_settings(kafka=settings.kafka, topic_prefix=f"{settings.topic_prefix}.more")
    await ensure_topics(target, partitions=4)
    await restore(target, path)
    await record(target, Selection(), again)
    records = [plain(one) for one in read_dump(path)]
    assert records == [plain(one) for one in read_dump(again)]
    assert records[0].headers == (("h", b"\xff"), ("h", None), ("", b""))
    assert [one.value for one in records] == [body, None, b"\xfe{", None, event]
    assert [one.timestamp_ms - old_ms for one in records] == [0, 1, 2, 3, 4]


async def test_what_a_selection_takes(settings: Settings, tmp_path: Path) -> None:
    """By offsets, times, session, and the last so many."""
    old_ms = int(time.time() * 1000) - 3_600_000
    async with producing(settings) as producer:
        for number in range(10):
            await producer.send_and_wait(
                settings.topics.requests,
                b"{}",
                key=b"even" if number % 2 == 0 else b"odd",
                partition=number % 2,
                timestamp_ms=old_ms + 1000 * number,
            )

    async def taken(selection: Selection) -> list[int]:
        path = tmp_path / "d"
        await record(settings, selection, path, with_answers=False, replace=True)
        assert check_dump(path).header.num_partitions == 3
        return [(one.timestamp_ms - old_ms) // 1000 for one in read_dump(path)]

    assert await taken(Selection()) == list(range(10))
    assert await taken(Selection(offsets=(OffsetRange(1, 1, 2),))) == [3, 5]
    assert await taken(Selection(offsets=(OffsetRange(0, 0, 0), OffsetRange(0, 4, None)))) == [
        *(0, 8),
    ]
    assert await taken(Selection(since_ms=old_ms + 7000)) == [7, 8, 9]
    assert await taken(Selection(until_ms=old_ms + 2000)) == [0, 1]
    assert await taken(Selection(sessions=frozenset({"odd"}))) == [1, 3, 5, 7, 9]
    assert await taken(Selection(last=3)) == [7, 8, 9]
    assert await taken(Selection(last=2, sessions=frozenset({"even"}))) == [6, 8]
    assert await taken(Selection(since_ms=old_ms + 99_000_000)) == []
