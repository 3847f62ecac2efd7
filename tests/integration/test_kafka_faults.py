"""A broker that goes away, is killed or stands still; records and offsets that are gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from headrace.deploy.embedded_kafka import EmbeddedKafka
from tests.faults import MESSAGES, own_kafka, quick_answer, settings_of, through
from tests.long_answers import LongAnswers
from tests.pipeline import Pipeline, Reply, running_pipeline

pytestmark = [
    pytest.mark.integration,
    pytest.mark.alone,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]

LONG = 2000
PARTITION = 0


@dataclass
class Stage:
    """A broker of our own, one worker, and what it answers when nothing happens."""

    kafka: EmbeddedKafka
    pipeline: Pipeline
    answers: LongAnswers
    expected: dict[str, Reply]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    redis_url: str, slow_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    folder, prefix = tmp_path_factory.mktemp("faults"), f"t{uuid4().hex[:12]}"
    async with own_kafka(folder / "kafka") as kafka:
        settings = settings_of(kafka.bootstrap, redis_url, slow_model_dir, prefix)
        async with running_pipeline(settings, folder) as pipeline:
            await pipeline.start_worker()
            answers = LongAnswers(pipeline, MESSAGES, LONG)
            yield Stage(kafka, pipeline, answers, await answers.undisturbed())


async def ask_many(pipeline: Pipeline, *names: str) -> None:
    """Short requests, one session each, all in one partition."""
    for name in names:
        body = {"request_id": name, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
        await pipeline.ask(body, key=name, partition=PARTITION)


async def delete_records(pipeline: Pipeline, before_offset: int) -> None:
    """As retention would, now; -1 is all of them."""
    admin = AIOKafkaAdminClient(**pipeline.settings.kafka_options())
    await admin.start()
    try:
        part = TopicPartition(pipeline.settings.topics.requests, PARTITION)
        await admin.delete_records({part: RecordsToDelete(before_offset)})
    finally:
        await admin.close()


async def end_of(pipeline: Pipeline) -> int:
    """The partition's end, by a record that asks for nothing."""
    topic = pipeline.settings.topics.requests
    sent = await pipeline.producer.send_and_wait(topic, None, key=b"", partition=PARTITION)
    return int(sent.offset) + 1


async def _assert_a_pause(stage: Stage, run: str, fault: Callable[[], Awaitable[None]]) -> None:
    """The readers wait for as long as the broker is away, and the next answer comes as usual."""
    outage = await through(stage.answers, run, fault, expected=stage.expected)
    later_s = await quick_answer(stage.pipeline, f"after {run}")
    print(f"{outage}, next answer after {later_s:.1f} s")
    assert outage.pause_s < outage.lasted_s + 3
    assert later_s < 3


async def test_a_broker_stopped_for_ten_seconds_is_a_pause(stage: Stage) -> None:
    """Cases A17: the same worker goes on when it is back; nothing is doubled."""

    async def stop() -> None:
        await asyncio.to_thread(stage.kafka.stop)
        await asyncio.sleep(10)
        await asyncio.to_thread(stage.kafka.start)

    await _assert_a_pause(stage, "stopped", stop)


async def test_a_broker_killed_and_started_again_is_a_pause(stage: Stage) -> None:
    """kill -9: it recovers its log; what it had not acknowledged is sent again, once."""

    async def kill() -> None:
        await asyncio.to_thread(stage.kafka.kill)
        await asyncio.to_thread(stage.kafka.start)

    await _assert_a_pause(stage, "killed", kill)


async def test_a_broker_that_stands_still_is_a_pause(stage: Stage) -> None:
    """SIGSTOP for longer than the session timeout: connections stay open and say nothing."""

    async def pause() -> None:
        pid = stage.kafka.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(8)
        os.kill(pid, signal.SIGCONT)

    await _assert_a_pause(stage, "paused", pause)


async def test_requests_of_a_time_without_workers_are_answered_also_behind_a_hole(
    stage: Stage,
) -> None:
    """The committed offset lies before the log's start: what is left is answered, and once all of
    it is gone, what comes next.
    """
    pipeline = stage.pipeline
    assert await pipeline.workers[-1].terminate() == 0
    end = await end_of(pipeline)
    await ask_many(pipeline, "gone 1", "gone 2", "left 1", "left 2")
    await delete_records(pipeline, end + 2)
    worker = await pipeline.start_worker()
    await pipeline.finished(["left 1", "left 2"])
    await pipeline.all_committed()
    assert await worker.terminate() == 0
    await ask_many(pipeline, "gone 3", "gone 4")
    await delete_records(pipeline, -1)
    await pipeline.start_worker()
    await ask_many(pipeline, "next 1")
    await pipeline.finished(["next 1"])
    await pipeline.all_committed()
    assert not [name for name in pipeline.replies if name.startswith("gone")]


async def test_records_deleted_before_a_worker_read_them_do_not_stop_it(stage: Stage) -> None:
    """Its position is out of range: it goes on at the log's start, and the hole is committed."""
    pipeline = stage.pipeline
    worker = pipeline.workers[-1]
    await quick_answer(pipeline, "before the hole")
    end = await end_of(pipeline)
    worker.process.send_signal(signal.SIGSTOP)
    await ask_many(pipeline, "unread 1", "unread 2", "read 1")
    await delete_records(pipeline, end + 2)
    worker.process.send_signal(signal.SIGCONT)
    await pipeline.finished(["read 1"])
    await pipeline.all_committed()
    assert "unread 2" not in pipeline.replies  # the first may have been under way to it
    await delete_records(pipeline, -1)
    await ask_many(pipeline, "read 2")
    await pipeline.finished(["read 2"])
    await pipeline.all_committed()
    assert worker.process.poll() is None


async def test_records_deleted_while_they_are_answered_are_answered(stage: Stage) -> None:
    """The committed offset stays before the log's start until they are finished."""
    pipeline = stage.pipeline

    async def delete() -> None:
        await ask_many(pipeline, "behind 1", "behind 2")
        await delete_records(pipeline, -1)

    await through(stage.answers, "deleted", delete, expected=stage.expected)
    await pipeline.finished(["behind 1", "behind 2"])


async def test_aborted_transactions_between_requests_leave_no_hole(stage: Stage) -> None:
    """Offsets that no reader gets, in the middle of a partition, with work on both sides."""
    pipeline = stage.pipeline
    settings = pipeline.settings
    producer = AIOKafkaProducer(
        **settings.kafka_options(), transactional_id=f"{settings.topic_prefix}-faults"
    )
    value = b'{"request_id":"aborted","prompt":"x"}'
    await producer.start()
    try:
        for number in range(3):
            await ask_many(pipeline, f"around {number}")
            await producer.begin_transaction()
            for _ in range(number + 1):
                await producer.send_and_wait(
                    settings.topics.requests, value, key=b"aborted", partition=PARTITION
                )
            await producer.abort_transaction()
    finally:
        await producer.stop()
    await ask_many(pipeline, "around 3")
    await pipeline.finished([f"around {number}" for number in range(4)])
    await pipeline.all_committed()
    assert "aborted" not in pipeline.replies
