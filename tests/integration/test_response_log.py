"""The response log against a real Kafka: replay joins live, cursors, slow readers, tenants."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from headrace.consumers.cursor import Cursor
from headrace.consumers.response_log import ResponseLog, SlowReaderError, Subscription
from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from headrace.schemas.request_id import new_request_id
from headrace.schemas.settings import Settings
from headrace.schemas.topics import partition_of
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, answer

pytestmark = pytest.mark.integration


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    found = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(found, partitions=TOPIC_PARTITIONS)
    return found


@pytest.fixture
async def events(settings: Settings) -> AsyncIterator[ResponseWriter]:
    async with ResponseWriter(settings) as writing:
        yield writing


@pytest.fixture
async def log(settings: Settings) -> AsyncIterator[ResponseLog]:
    reading = ResponseLog(settings)
    await reading.start()
    yield reading
    await reading.stop()


def words(count: int) -> list[str]:
    return [f"w{number} " for number in range(count)]


async def numbers(reader: Subscription, count: int) -> list[int]:
    """The sequence numbers of the next `count` events, as the log has them."""
    found: list[int] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found.append((await anext(reader)).event["sequence_number"])
    return found


async def test_a_live_reader_misses_nothing_written_after_it_subscribed(
    log: ResponseLog, events: ResponseWriter
) -> None:
    """Subscribe, then produce: every event comes, in order."""
    assert log.ready
    async with log.follow(tenant="default", session_id="s1") as reader:
        for value in answer("r1", "s1", words(20)):
            await events.write(value, session_id="s1")
        assert list(range(20)) == await numbers(reader, 20)
    assert log.num_subscriptions == 0


@pytest.mark.parametrize("named", ["session", "request", "generated"])
async def test_replay_joins_live_without_gap_or_repeat_under_production(
    log: ResponseLog, events: ResponseWriter, named: str
) -> None:
    """I9: readers that join at any moment of an answer see each event once, in order."""
    total = 120
    request = new_request_id() if named == "generated" else "r1"
    session = "s1" if named == "session" else None

    async def produce() -> None:
        for value in answer(request, "s1", words(total)):
            await events.write(value, session_id="s1")

    async def read(delay_s: float) -> list[int]:
        await asyncio.sleep(delay_s)
        async with log.follow(
            tenant="default", session_id=session, request_id=request, from_start=True
        ) as reader:
            return await numbers(reader, total)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        readers = [tasks.create_task(read(0.02 * number)) for number in range(8)]
    for reader in readers:
        assert list(range(total)) == reader.result()


async def test_a_cursor_goes_on_right_after_its_event_for_every_place(
    log: ResponseLog, events: ResponseWriter
) -> None:
    """I8: the same cursor gives the same rest, as often as it is shown."""
    for value in answer("r1", "s1", words(12)):
        await events.write(value, session_id="s1")
    async with log.follow(tenant="default", session_id="s1", from_start=True) as reader:
        async with asyncio.timeout(10):
            cursors = [(await anext(reader)).cursor for _ in range(12)]
    for _ in range(2):
        async with log.follow(tenant="default", session_id="s1", cursor=cursors[7]) as reader:
            assert reader.resumed_after is not None
            assert reader.resumed_after.event["sequence_number"] == 7
            assert await numbers(reader, 4) == [8, 9, 10, 11]
    async with log.follow(tenant="default", session_id="s1", cursor=cursors[11]) as reader:
        for value in answer("r2", "s1", words(2)):
            await events.write(value, session_id="s1")
        assert await numbers(reader, 2) == [0, 1]


@pytest.mark.parametrize("place", ["future", "foreign", "other tenant", "no partition"])
async def test_a_cursor_that_is_not_ours_or_not_there_is_a_resume_gap(
    log: ResponseLog, events: ResponseWriter, place: str
) -> None:
    """A cursor of the future, of another session, of another tenant, of another topic."""
    value = answer("r1", "s1", words(1))[0]
    partition, offset = await events.write(value, session_id="s1")
    cursors = {
        "future": Cursor(partition, offset + 999),
        "foreign": Cursor(partition, offset),
        "other tenant": Cursor(partition, offset),
        "no partition": Cursor(999, 0),
    }
    tenant = "acme" if place == "other tenant" else "default"
    session = "s2" if place == "foreign" else "s1"
    reader = log.follow(tenant=tenant, session_id=session, cursor=str(cursors[place]))
    with pytest.raises(RequestError) as problem:
        await reader.__aenter__()
    assert problem.value.code is ErrorCode.RESUME_GAP
    assert log.num_subscriptions == 0


async def test_a_cursor_that_retention_took_is_a_resume_gap(
    log: ResponseLog, events: ResponseWriter, settings: Settings
) -> None:
    """Records below the log start are gone, and the reader is told."""
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

    places = [await events.write(value, session_id="s1") for value in answer("r1", "s1", words(5))]
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        part = TopicPartition(settings.topics.responses, places[3][0])
        await admin.delete_records({part: RecordsToDelete(before_offset=places[3][1])})
    finally:
        await admin.close()
    with pytest.raises(RequestError) as problem:
        await log.follow(
            tenant="default", session_id="s1", cursor=str(Cursor(*places[1]))
        ).__aenter__()
    assert problem.value.code is ErrorCode.RESUME_GAP
    async with log.follow(tenant="default", session_id="s1", cursor=str(Cursor(*places[3]))) as it:
        assert await numbers(it, 1) == [4]


async def test_a_slow_reader_is_let_go_alone(
    log: ResponseLog, events: ResponseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I2: one that does not read ends with SlowReaderError and its cursor; the other has
    all.
    """
    monkeypatch.setattr("headrace.consumers.subscription.MAX_BUFFERED_EVENTS", 10)
    async with (
        log.follow(tenant="default", session_id="s1") as slow,
        log.follow(tenant="default", session_id="s1") as fast,
    ):
        values = answer("r1", "s1", words(40))
        await events.write(values[0], session_id="s1")
        seen = await numbers(fast, 1)
        first = await anext(slow)
        for value in values[1:]:
            await events.write(value, session_id="s1")
            seen += await numbers(fast, 1)
        assert list(range(40)) == seen
        with pytest.raises(SlowReaderError) as problem:
            await anext(slow)
    assert problem.value.cursor == first.cursor
    async with log.follow(tenant="default", session_id="s1", cursor=first.cursor) as again:
        assert list(range(1, 40)) == await numbers(again, 39)


async def test_a_small_buffer_does_not_end_a_replay(
    log: ResponseLog, events: ResponseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the past is read, live events beyond the buffer are read from the log instead."""
    monkeypatch.setattr("headrace.consumers.subscription.MAX_BUFFERED_EVENTS", 5)
    values = answer("r1", "s1", words(60))
    for value in values[:20]:
        await events.write(value, session_id="s1")
    async with (
        log.follow(tenant="default", session_id="s1", from_start=True) as reader,
        log.follow(tenant="default", session_id="s1", from_start=True) as fence,
    ):
        seen = await numbers(reader, 1)
        await numbers(fence, 20)
        for value in values[20:]:
            await events.write(value, session_id="s1")
            await numbers(fence, 1)
        assert list(range(60)) == seen + await numbers(reader, 59)


async def test_tenants_see_their_own_events_only(log: ResponseLog, events: ResponseWriter) -> None:
    """The same session name of two tenants is two sessions."""
    async with log.follow(tenant="acme", session_id="s1") as reader:
        for tenant, request in ((None, "r1"), ("other", "r2"), ("acme", "r3")):
            value = answer(request, "s1", ["x"])[0]
            await events.write(value, session_id="s1", tenant=tenant)
        async with asyncio.timeout(10):
            assert (await anext(reader)).request_id == "r3"


async def test_what_is_no_event_is_counted_and_skipped(
    log: ResponseLog, events: ResponseWriter
) -> None:
    """Bytes that are no JSON, and JSON that is no event, stop nobody."""
    broken = [b"\xff\x00", b"[]", b'{"id":1}', orjson.dumps({"id": "r", "session_id": "s1"})]
    async with log.follow(tenant="default", session_id="s1") as reader:
        for value in [*broken, *answer("r1", "s1", ["x"])]:
            await events.write(value, session_id="s1")
        assert await numbers(reader, 1) == [0]
    assert log.num_broken_events == len(broken)


async def test_a_request_without_a_key_is_found_in_any_partition(
    log: ResponseLog, events: ResponseWriter, settings: Settings
) -> None:
    """Its session is its id, and its partition was the producer's choice."""
    for partition in range(TOPIC_PARTITIONS):
        request = f"{settings.topics.requests}-{partition}-17"
        other = (partition_of(request.encode(), TOPIC_PARTITIONS) + 1) % TOPIC_PARTITIONS
        await events.write(answer(request, request, ["x"])[0], session_id=request, partition=other)
        async with log.follow(tenant="default", session_id=request, from_start=True) as reader:
            assert await numbers(reader, 1) == [0]


async def test_two_logs_both_see_all(log: ResponseLog, events: ResponseWriter) -> None:
    """I11: two gateways share no group, so each has every event."""
    other = ResponseLog(log._settings)
    await other.start()
    try:
        async with (
            log.follow(tenant="default", session_id="s1") as one,
            other.follow(tenant="default", session_id="s1") as two,
        ):
            for value in answer("r1", "s1", words(10)):
                await events.write(value, session_id="s1")
            assert list(range(10)) == await numbers(one, 10) == await numbers(two, 10)
    finally:
        await other.stop()


async def test_stop_ends_readers_and_leaves_no_task(settings: Settings) -> None:
    """A reader that waits when the log stops gets an error, and nothing goes on running."""
    before = asyncio.all_tasks()
    log = ResponseLog(settings)
    await log.start()
    async with log.follow(tenant="default", session_id="s1") as reader:
        await log.stop()
        with pytest.raises(UnavailableError):
            await anext(reader)
    with pytest.raises(UnavailableError):
        await log.follow(tenant="default", session_id="s1").__aenter__()
    assert not log.ready
    assert asyncio.all_tasks() == before


def own_tasks() -> set[str]:
    """Names of the tasks that run, without those of the clients that the log keeps open."""
    return {
        task.get_name()
        for task in asyncio.all_tasks()
        if "aiokafka" not in getattr(task.get_coro(), "cr_code").co_filename  # noqa: B009 - mypy
    }


async def test_cancelled_readers_leave_nothing(log: ResponseLog, events: ResponseWriter) -> None:
    """I4: readers cancelled while they wait, live or in the past, are gone afterwards."""
    before = own_tasks()

    async def read(from_start: bool) -> None:
        async with log.follow(tenant="default", session_id="s1", from_start=from_start) as it:
            await anext(it)

    for delay_s in (0.0, 0.005, 0.02, 0.05, 0.2):
        for from_start in (False, True):
            task = asyncio.create_task(read(from_start))
            await asyncio.sleep(delay_s)
            task.cancel()
            await asyncio.wait({task})
    assert log.num_subscriptions == 0
    assert own_tasks() == before


@pytest.mark.timeout(90)
async def test_a_reader_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    """Not ready while it is away; afterwards the same subscription goes on, and nothing is
    missing.
    """
    kafka = EmbeddedKafka(tmp_path)
    await asyncio.to_thread(kafka.start)
    try:
        settings = Settings(kafka=kafka.bootstrap)
        await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
        log = ResponseLog(settings)
        await log.start()
        values = answer("r1", "s1", words(10))
        async with log.follow(tenant="default", session_id="s1") as reader:
            async with ResponseWriter(settings) as events:
                for value in values[:5]:
                    await events.write(value, session_id="s1")
            assert await numbers(reader, 5) == list(range(5))
            await asyncio.to_thread(kafka.kill)
            async with asyncio.timeout(30):
                while log.ready:  # noqa: ASYNC110 - a probe finds out
                    await asyncio.sleep(0.1)
            await asyncio.to_thread(kafka.start)
            async with ResponseWriter(settings) as events:
                for value in values[5:]:
                    await events.write(value, session_id="s1")
            async with asyncio.timeout(30):
                rest = [(await anext(reader)).event["sequence_number"] for _ in range(5)]
                assert rest == list(range(5, 10))
                while not log.ready:  # noqa: ASYNC110 - ditto
                    await asyncio.sleep(0.1)
        await log.stop()
    finally:
        await asyncio.to_thread(kafka.stop)
