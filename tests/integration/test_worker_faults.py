"""Workers that are stopped and woken up, told to end twice, or lose their engine or agent."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.dying_worker import DyingWorker, Key, Prompt
from tests.faults import MESSAGES, assert_same, quick_answer, settings_of
from tests.long_answers import LongAnswers
from tests.pipeline import Pipeline, WorkerProcess, running_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LONG = 2000
EXIT_S = 30.0


@pytest.fixture
async def lone_partition(
    kafka_bootstrap: str, redis_url: str, slow_model_dir: Path, tmp_path: Path
) -> AsyncIterator[Pipeline]:
    """Like `slow_pipeline`, with one partition for all workers."""
    prefix = f"t{uuid4().hex[:12]}"
    settings = settings_of(kafka_bootstrap, redis_url, slow_model_dir, prefix)
    async with running_pipeline(settings, tmp_path, partitions=1) as running:
        yield running


async def until_idle(worker: WorkerProcess, *, timeout_s: float) -> float:
    """Seconds until the worker's engine has nothing to do."""
    began_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while await worker.metric("headrace_num_requests_running"):  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.05)
    return time.monotonic() - began_s


@pytest.mark.alone
async def test_a_worker_that_was_stopped_changes_nothing_when_it_wakes_up_and_serves_again(
    lone_partition: Pipeline,
) -> None:
    """Cases A11: SIGSTOP until another has taken over; woken up, it lets go within 5 s."""
    pipeline = lone_partition
    answers = LongAnswers(pipeline, MESSAGES, LONG)
    await pipeline.start_workers(2)
    expected = await answers.undisturbed()
    replies = await answers.ask("stopped")
    zombie = await answers.worker_in_mid_sentence(replies)
    zombie.process.send_signal(signal.SIGSTOP)
    survivor = next(worker for worker in pipeline.workers if worker is not zombie)
    await pipeline.until(
        lambda: all(r.published_by[-1] == survivor.process.pid for r in replies.values())
    )
    zombie.process.send_signal(signal.SIGCONT)
    idle_s = await until_idle(zombie, timeout_s=5)
    fenced = await zombie.metric("headrace_fenced_total")
    print(f"let go after {idle_s:.2f} s, fenced {fenced:.0f}")
    await pipeline.finished([f"{kind} stopped" for kind in replies])
    for kind, reply in replies.items():
        assert_same(reply, expected[kind])
        assert len({attempt for attempt, _ in reply.first_seen}) == 1
    await pipeline.all_committed()
    print(f"longest pause {answers.longest_pause_s('stopped'):.1f} s")
    assert answers.longest_pause_s("stopped") < pipeline.settings.session_timeout_s + 2
    assert zombie.process.poll() is None, zombie.tail()
    assert await survivor.terminate() == 0
    await quick_answer(pipeline, "again", timeout_s=15)
    assert pipeline.replies["again"].published_by[-1] == zombie.process.pid


@pytest.mark.alone
async def test_a_standby_takes_over(lone_partition: Pipeline) -> None:
    """Cases A12: three workers, one partition; the one that has it is killed."""
    pipeline = lone_partition
    await pipeline.start_workers(3)
    await quick_answer(pipeline, "first")
    pipeline.worker(pipeline.replies["first"].published_by[-1]).kill()
    took_s = await quick_answer(pipeline, "second")
    print(f"a standby answered after {took_s:.1f} s")
    assert took_s < pipeline.settings.session_timeout_s + 5


@pytest.mark.alone
@pytest.mark.parametrize("after_s", [0.05, 1.0])
async def test_killed_while_it_drains_the_other_worker_goes_on(
    slow_pipeline: Pipeline, after_s: float
) -> None:
    """Cases D2: SIGTERM, then kill -9; what it had not handed over comes from the journal."""
    answers = LongAnswers(slow_pipeline, MESSAGES, LONG)
    await slow_pipeline.start_workers(2)
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("killed"))
    victim.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(after_s)
    victim.kill()
    await answers.assert_went_on("killed", victim=victim, expected=expected)
    pause_s = answers.longest_pause_s("killed")
    print(f"exit code {victim.process.returncode}, longest pause {pause_s:.1f} s")
    assert pause_s < slow_pipeline.settings.session_timeout_s + 2


@pytest.mark.alone
async def test_a_second_sigterm_does_not_break_the_drain(slow_pipeline: Pipeline) -> None:
    """Cases D2: exit code 0, and the other worker goes on at once."""
    answers = LongAnswers(slow_pipeline, MESSAGES, LONG)
    await slow_pipeline.start_workers(2)
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("drained"))
    for _ in range(3):
        victim.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.02)
    assert await victim.terminate() == 0, victim.tail()
    await answers.assert_went_on("drained", victim=victim, expected=expected)
    assert answers.longest_pause_s("drained") < 2


async def dying_worker(pipeline: Pipeline, *, stall_limit_s: float = 60.0) -> DyingWorker:
    worker = DyingWorker(pipeline.settings, pipeline.folder, stall_limit_s=stall_limit_s)
    pipeline.workers.append(worker)
    await worker.ready()
    return worker


async def exit_code(worker: WorkerProcess, *, timeout_s: float = EXIT_S) -> int:
    began_s = time.monotonic()
    code = await asyncio.to_thread(worker.process.wait, timeout_s)
    print(f"ended with {code} after {time.monotonic() - began_s:.1f} s")
    return code


def deadly(name: str, text: str) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"request_id": name, "messages": messages, "max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize("key", list(Key))
async def test_the_death_of_an_agent_ends_the_process(pipeline: Pipeline, key: Key) -> None:
    """Cases A14, A15: never alive without reading; the next worker answers."""
    worker = await dying_worker(pipeline)
    await quick_answer(pipeline, "before")
    await pipeline.ask(deadly("r1", "hi"), key=key)
    assert await exit_code(worker) != 0
    await pipeline.start_worker()
    await pipeline.finished(["r1"])
    assert not pipeline.replies["r1"].failed
    await pipeline.all_committed()


async def test_the_death_of_the_engine_ends_the_process(pipeline: Pipeline) -> None:
    """Cases A14: an error that no row caused, here a step that ends its thread."""
    worker = await dying_worker(pipeline)
    await quick_answer(pipeline, "before")
    await pipeline.ask(deadly("r1", Prompt.EXIT), key="s1")
    assert await exit_code(worker) != 0
    await pipeline.start_worker()
    await pipeline.finished(["r1"])
    assert not pipeline.replies["r1"].failed


@pytest.mark.parametrize("is_first_step", [False, True])
async def test_an_engine_that_stands_still_ends_the_process(
    pipeline: Pipeline, is_first_step: bool
) -> None:
    """Cases A15: with the limit of a minute cut to 3 s; also in the first step of its life."""
    worker = await dying_worker(pipeline, stall_limit_s=3.0)
    if not is_first_step:
        await quick_answer(pipeline, "before")
    await pipeline.ask(deadly("r1", Prompt.STAND_STILL), key="s1")
    assert await exit_code(worker) != 0
    await pipeline.start_worker()
    await pipeline.finished(["r1"])
    assert not pipeline.replies["r1"].failed


async def test_an_engine_that_was_idle_is_not_taken_for_one_that_stands_still(
    pipeline: Pipeline,
) -> None:
    """A first step that takes its time, after a pause that was longer than the limit."""
    worker = await dying_worker(pipeline, stall_limit_s=3.0)
    await quick_answer(pipeline, "before")
    await asyncio.sleep(3.5)  # nothing happens, which is what is to be tested
    await pipeline.ask(deadly("r1", Prompt.SLOW), key="s1")
    await pipeline.finished(["r1"], timeout_s=10)
    assert worker.process.poll() is None, worker.tail()
