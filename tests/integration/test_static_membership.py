"""Workers with a `group_instance_id`: a quick restart moves nothing, a drain still hands over."""

import asyncio
import time

import pytest

from headrace.schemas.settings import Settings
from tests.long_answers import LongAnswers
from tests.pipeline import Pipeline, WorkerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MESSAGES = [{"role": "user", "content": "tell me about mills"}]
LONG = 2000


def assignments(worker: WorkerProcess) -> int:
    """How often the group has given it partitions."""
    return worker.log.read_text(errors="replace").count("partitions assigned")


@pytest.fixture
def patient(slow_pipeline: Pipeline) -> Pipeline:
    """A session timeout in which a worker can start again."""
    update = {"session_timeout_s": 60.0}
    slow_pipeline.settings = Settings.model_copy(slow_pipeline.settings, update=update)
    return slow_pipeline


async def two_workers(pipeline: Pipeline) -> None:
    for name in ("a", "b"):
        await pipeline.start_worker(group_instance_id=name)


async def test_a_worker_that_is_back_in_time_goes_on_and_the_others_are_not_disturbed(
    patient: Pipeline,
) -> None:
    """kill -9 and a start under the same name, as a StatefulSet does: no rebalance."""
    answers = LongAnswers(patient, MESSAGES, LONG)
    await two_workers(patient)
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("killed"))
    (other,) = [worker for worker in patient.workers if worker is not victim]
    name = "ab"[patient.workers.index(victim)]
    before = assignments(other)
    victim.kill()
    started_s = time.monotonic()
    await patient.start_worker(group_instance_id=name)
    assert time.monotonic() - started_s < 60
    await patient.finished(["greedy killed", "seeded killed"], timeout_s=60)
    for kind in ("greedy", "seeded"):
        reply = patient.replies[f"{kind} killed"]
        assert reply.token_ids == expected[kind].token_ids
        assert reply.publishers == [victim.process.pid, patient.workers[-1].process.pid]
    assert assignments(other) == before
    await patient.all_committed()


@pytest.mark.alone
async def test_a_drained_static_member_hands_over_at_once(patient: Pipeline) -> None:
    """Its partitions do not wait for it until the session timeout."""
    answers = LongAnswers(patient, MESSAGES, LONG)
    await two_workers(patient)
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("drained"))
    assert await victim.terminate() == 0, victim.tail()
    await answers.assert_went_on("drained", victim=victim, expected=expected)
    assert answers.longest_pause_s("drained") < 3


async def test_two_workers_under_one_name_end_with_a_clear_reason(patient: Pipeline) -> None:
    """The group lets one of them in; the other is told, and does not fight for it."""
    first = await patient.start_worker(group_instance_id="twin")
    second = await patient.start_worker(group_instance_id="twin")
    async with asyncio.timeout(30):
        while first.process.poll() is None:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.1)
    assert first.process.returncode == 1
    assert "another worker has the same group_instance_id" in first.log.read_text()
    assert second.process.poll() is None
    reply = await patient.answer({"messages": MESSAGES, "max_tokens": 3})
    assert reply.finish_reason == "length"
