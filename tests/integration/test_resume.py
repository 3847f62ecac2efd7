"""Where readers of the log begin: from memory, from Kafka, across both, and what is no place."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from headrace.consumers.cursor import Cursor
from headrace.consumers.log_event import Wanted
from headrace.consumers.recent_log import RecentLog
from headrace.consumers.replay import LogReplay
from headrace.consumers.response_log import ResponseLog, Subscription
from headrace.consumers.shared_past import SharedPast
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request_id import new_request_id
from headrace.schemas.settings import Settings
from headrace.schemas.topics import partition_of
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, answer

pytestmark = pytest.mark.integration

HOME = partition_of(b"s1", TOPIC_PARTITIONS)


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    found = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, recent_log_mb=1)
    await ensure_topics(found, partitions=TOPIC_PARTITIONS)
    return found


@pytest.fixture
async def events(settings: Settings) -> AsyncIterator[ResponseWriter]:
    async with ResponseWriter(settings) as writing:
        yield writing


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncIterator[ResponseLog]:
    """The log as a gateway process that starts now has it."""
    log = ResponseLog(settings)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


async def write(settings: Settings, values: list[bytes], *, session: str = "s1") -> list[int]:
    """Many records at once; the offset of each."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, acks="all")
    await producer.start()
    try:
        key = session.encode()
        home = partition_of(key, TOPIC_PARTITIONS)
        topic = settings.topics.responses
        sent = [await producer.send(topic, it, key=key, partition=home) for it in values]
        return [(await it).offset for it in sent]
    finally:
        await producer.stop()


async def numbers(reader: Subscription, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found.append((await anext(reader)).event["sequence_number"])
    return found


async def gap_of(reader: Subscription) -> RequestError:
    """The error of a reader that cannot begin where it wants to."""
    with pytest.raises(RequestError) as problem:
        await reader.__aenter__()
    assert problem.value.code is ErrorCode.RESUME_GAP
    return problem.value


@pytest.mark.parametrize("named", ["chosen", "generated"])
async def test_every_place_resumes_whether_it_is_in_memory_or_not(
    settings: Settings, named: str
) -> None:
    """An answer that is far larger than the memory for it: cursors and numbers anywhere in it, at
    the gateway that saw it and at one that starts later.
    """
    total, request = 1_500, "r1" if named == "chosen" else new_request_id()
    async with gateway(settings) as warm:
        offsets = await write(settings, answer(request, "s1", ["x" * 500] * total))
        async with warm.follow(session_id="s1", cursor=str(Cursor(HOME, offsets[-2]))) as reader:
            assert await numbers(reader, 1) == [total - 1]  # so it has seen them all
        draw = random.Random(1)
        places = [0, total - 2, *(draw.randrange(total - 1) for _ in range(4))]
        async with gateway(settings) as cold:
            for log in (warm, cold):
                for place in places:
                    rest = list(range(place + 1, total))
                    cursor = str(Cursor(HOME, offsets[place]))
                    async with log.follow(session_id="s1", cursor=cursor) as reader:
                        assert await numbers(reader, len(rest)) == rest
                async with log.follow(request_id=request, starting_after=total - 5) as reader:
                    assert (await numbers(reader, total))[-1] == total - 1


async def test_a_cursor_of_a_gateway_that_is_ahead_is_no_gap(
    settings: Settings, events: ResponseWriter
) -> None:
    """Shown in the moment when its event is written: this gateway may not have read it yet."""
    async with gateway(settings) as log:
        for value in answer("r1", "s1", ["x"] * 60):
            place = Cursor(*await events.write(value, session_id="s1"))
            async with log.follow(session_id="s1", cursor=str(place)) as reader:
                assert reader.resumed_after is not None
                assert reader.resumed_after.offset == place.offset


async def test_a_session_from_its_beginning_is_all_that_the_log_has_of_it(
    settings: Settings, events: ResponseWriter
) -> None:
    """Every request of it, then what comes; two readers of it each have everything."""
    for request in ("r1", "r2"):
        for value in answer(request, "s1", ["x"] * 3):
            await events.write(value, session_id="s1")
    async with (
        gateway(settings) as log,
        log.follow(session_id="s1", starting_after=-1) as one,
        log.follow(session_id="s1", starting_after=-1) as two,
    ):
        for value in answer("r3", "s1", ["x"] * 2):
            await events.write(value, session_id="s1")
        for reader in (one, two):
            assert await numbers(reader, 8) == [0, 1, 2, 0, 1, 2, 0, 1]


async def test_five_hundred_readers_of_the_past_share_its_reading(settings: Settings) -> None:
    """One of them takes nothing: the others have all, and the log was read about twice."""
    total, target = 4_000, {HOME: 4_000}
    await write(settings, answer("r1", "s1", ["x" * 100] * total))
    past, recent = SharedPast(settings), RecentLog(1_000_000)
    recent.begin(HOME, total, now_ms=0)

    async def read(place: int) -> int:
        replay = LogReplay(Wanted("default", "s1"), [{HOME: place}], target, recent, past)
        count = 0
        try:
            while (event := await replay.next()) is not None:
                assert event.offset == place + count
                count += 1
        finally:
            await replay.stop()
        return count

    serving = asyncio.create_task(past.run())
    stuck = LogReplay(Wanted("default", "s1"), [{HOME: 0}], target, recent, past)
    assert await stuck.next() is not None
    try:
        async with asyncio.timeout(60):
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read(7 * number)) for number in range(500)]
        assert [task.result() for task in readers] == [total - 7 * it for it in range(500)]
        assert past.num_records < 3 * total
        rest = 1
        while await stuck.next() is not None:
            rest += 1
        assert rest == total
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_transactions_leave_no_hole_in_the_past(settings: Settings) -> None:
    """Markers and aborted records take up offsets; the past ends behind them."""
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.kafka, transactional_id=f"{settings.topic_prefix}-tx"
    )
    await producer.start()
    values = answer("r1", "s1", ["x"] * 6)
    try:
        for start, keep in ((0, True), (3, False), (3, True)):
            await producer.begin_transaction()
            for value in values[start : start + 3]:
                await producer.send(settings.topics.responses, value, key=b"s1", partition=HOME)
            await (producer.commit_transaction() if keep else producer.abort_transaction())
    finally:
        await producer.stop()
    async with (
        gateway(settings) as log,
        log.follow(session_id="s1", from_start=True) as reader,
    ):
        assert await numbers(reader, 6) == list(range(6))
        cursor = reader.cursor
        async with log.follow(session_id="s1", cursor=cursor) as rest:
            await write(settings, answer("r2", "s1", ["x"]))
            assert await numbers(rest, 1) == [0]


async def test_a_topic_made_anew_ends_old_readers_and_serves_new_ones(
    settings: Settings, events: ResponseWriter
) -> None:
    """Readers that may have missed something get `resume_gap`; so do cursors beyond its end."""
    async with gateway(settings) as log, log.follow(session_id="s1") as reader:
        places = [await events.write(v, session_id="s1") for v in answer("r1", "s1", ["x"] * 5)]
        assert await numbers(reader, 5) == list(range(5))
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
        await admin.start()
        try:
            await admin.delete_topics([settings.topics.responses])
        finally:
            await admin.close()
        await recreated(settings)
        await write(settings, answer("r2", "s1", ["new "] * 3))
        with pytest.raises(RequestError) as problem:
            async with asyncio.timeout(15):
                await anext(reader)
        assert problem.value.code is ErrorCode.RESUME_GAP
        await gap_of(log.follow(session_id="s1", cursor=str(Cursor(*places[4]))))
        async with log.follow(session_id="s1", from_start=True) as again:
            assert await numbers(again, 3) == [0, 1, 2]


async def recreated(settings: Settings) -> None:
    """Deleting goes on behind its answer: until it is done, there is nothing to create."""
    async with asyncio.timeout(10):
        while True:
            await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
            await asyncio.sleep(0.2)
            admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
            await admin.start()
            try:
                (found,) = await admin.describe_topics([settings.topics.responses])
            finally:
                await admin.close()
            if not found["error_code"]:
                return


async def test_what_retention_takes_while_it_is_read_is_a_gap(settings: Settings) -> None:
    """The reader is told; it does not wait, and gets nothing that is not in order."""
    total = 3_000
    await write(settings, answer("r1", "s1", ["x" * 200] * total))
    async with (
        gateway(settings) as log,
        log.follow(session_id="s1", from_start=True) as reader,
    ):
        first = await numbers(reader, 10)
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
        await admin.start()
        try:
            part = TopicPartition(settings.topics.responses, HOME)
            await admin.delete_records({part: RecordsToDelete(before_offset=total - 10)})
        finally:
            await admin.close()
        with pytest.raises(RequestError) as problem:
            first += await numbers(reader, total)
        assert problem.value.code is ErrorCode.RESUME_GAP
        assert first == list(range(len(first)))


async def test_a_thousand_asks_for_unknown_ids_cost_a_few_readings(settings: Settings) -> None:
    """What waits is found, what nobody sent is not, and what a worker has committed neither."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, acks="all")
    await producer.start()
    try:
        for number in range(40):
            body = b'{"messages":[{"role":"user","content":"hi"}],"request_id":"w%d"}' % number
            await producer.send_and_wait(settings.topics.requests, body, key=b"s%d" % number)
    finally:
        await producer.stop()
    async with gateway(settings) as log, asyncio.TaskGroup() as tasks:
        unknown = [
            tasks.create_task(log.may_be_waiting("default", f"x{number}"))
            for number in range(1_000)
        ]
        known = [
            tasks.create_task(log.may_be_waiting("default", f"w{number}")) for number in range(40)
        ]
        foreign = tasks.create_task(log.may_be_waiting("acme", "w1"))
        async with asyncio.timeout(15):
            await asyncio.wait([*unknown, *known, foreign])
    assert {task.result() for task in unknown} == {False}
    assert {task.result() for task in known} == {True}
    assert foreign.result() is False


async def test_memory_serves_while_the_brokers_are_away(
    settings: Settings, events: ResponseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say where the log begins now: what is in memory is given all the same."""
    monkeypatch.setattr("headrace.consumers.replay_start.IN_MEMORY_TIMEOUT_S", 0.0)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(gateway(settings))
        live = await stack.enter_async_context(log.follow(session_id="s1"))
        places = [await events.write(v, session_id="s1") for v in answer("r1", "s1", ["x"] * 5)]
        await numbers(live, 5)
        cursor = str(Cursor(*places[2]))
        reader = await stack.enter_async_context(log.follow(session_id="s1", cursor=cursor))
        assert await numbers(reader, 2) == [3, 4]


async def test_an_answer_that_begins_ends_the_search_for_an_older_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that its client chose may have been answered before; but once its first event comes
    live, the reader has it at once, however much of the past was not read.
    """

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("headrace.consumers.shared_past.open_consumer", never)
    await write(settings, answer("other", "s1", ["x"] * 3))  # a past, which nobody can read
    async with (
        gateway(settings) as log,
        log.follow(request_id="mine", session_id="s1", from_start=True) as reader,
    ):
        waiting = asyncio.create_task(numbers(reader, 3))
        async with asyncio.timeout(10):
            while not log.num_readers_of_the_past:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        await write(settings, answer("mine", "s1", ["x"] * 3))
        assert await waiting == [0, 1, 2]
        assert log.num_readers_of_the_past == 0
