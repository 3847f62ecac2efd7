"""Workers that are killed, drained and joined in mid-sentence: the reader sees the same
sentence go on.
"""

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.long_answers import LongAnswers
from tests.oracle import oracle_for
from tests.pipeline import Pipeline, WorkerProcess

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(300)]

LONG = 2000
"""Tokens: seconds of `slow_model_dir`, of which the first events take a tenth."""

MESSAGES = [{"role": "user", "content": "tell me about mills"}]


async def test_killed_in_mid_sentence_the_other_worker_goes_on_with_the_same_sentence(
    slow_pipeline: Pipeline,
) -> None:
    """kill -9 of the worker that is answering, within the session timeout + 2 s."""
    answers = LongAnswers(slow_pipeline, MESSAGES, LONG)
    await slow_pipeline.start_workers(2)
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("killed"))
    victim.kill()
    await answers.assert_went_on("killed", victim=victim, expected=expected)
    assert answers.longest_pause_s("killed") < slow_pipeline.settings.session_timeout_s + 2


async def test_drained_in_mid_sentence_the_other_worker_goes_on_at_once(
    slow_pipeline: Pipeline,
) -> None:
    """SIGTERM: exit code 0, and a pause below 2 s. The undisturbed run is the model's own."""
    answers = LongAnswers(slow_pipeline, MESSAGES, LONG)
    await slow_pipeline.start_workers(2)
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("drained"))
    assert await victim.terminate() == 0, victim.tail()
    await answers.assert_went_on("drained", victim=victim, expected=expected)
    assert answers.longest_pause_s("drained") < 2
    oracle, ids = oracle_for(Path(slow_pipeline.settings.model)), expected["greedy"].token_ids
    assert ids == oracle.choices(oracle.prompt_ids(MESSAGES), ids)
    assert len(set(ids)) > 100, "it varies: in a loop a repeat would not show"


async def test_500_requests_with_a_worker_joining_and_one_killed_are_answered_once_in_order(
    pipeline: Pipeline,
) -> None:
    """50 sessions: nothing lost or doubled, order per session kept,
    committed offsets = end offsets.
    """
    await pipeline.start_workers(2)
    sessions: dict[str, list[str]] = {f"s{n}": [] for n in range(50)}
    rng = random.Random(5)

    async def produce() -> None:
        for turn in range(10):
            for session, asked in sessions.items():
                name = f"{session}-{turn}"
                body = {
                    "request_id": name,
                    "messages": [{"role": "user", "content": f"{turn}"}],
                    "temperature": 0,
                    "max_tokens": rng.randint(2, 12),
                    "turn": turn,
                }
                asked.append(await pipeline.ask(body, key=session))

    producing = asyncio.create_task(produce())
    await pipeline.until(lambda: len(pipeline.order) > 100)
    await pipeline.start_worker()
    pipeline.workers[0].kill()
    await producing
    names = [name for asked in sessions.values() for name in asked]
    await pipeline.finished(names, timeout_s=120)
    failed = {n: pipeline.replies[n].last["error"] for n in names if pipeline.replies[n].failed}
    assert failed == {}
    for session, asked in sessions.items():
        answered = [name for name in pipeline.order if name.rpartition("-")[0] == session]
        assert answered == asked
    await pipeline.all_committed()
    print(f"dropped by readers: {sum(reply.num_dropped for reply in pipeline.replies.values())}")


async def test_a_worker_told_to_stop_while_its_model_loads_exits_with_0(
    pipeline: Pipeline,
) -> None:
    """SIGTERM before it joined the group: nothing was taken, so it may go at once."""
    started_s = time.monotonic()
    worker = WorkerProcess(pipeline.settings, pipeline.folder)
    pipeline.workers.append(worker)
    while "metrics and health" not in worker.tail():
        assert worker.process.poll() is None, worker.tail()
        await asyncio.sleep(0.05)
    assert await worker.terminate() == 0
    assert time.monotonic() - started_s < 30
