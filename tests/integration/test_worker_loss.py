"""Workers that are killed, drained and joined in mid-sentence: the reader sees the same
sentence go on.
"""

import asyncio
import random
import time
from typing import Any

import pytest

from tests.oracle import Oracle
from tests.pipeline import Pipeline, WorkerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LONG = 450
"""Tokens: long enough that a worker is lost in the middle."""


def long_request(name: str) -> dict[str, Any]:
    return {
        "request_id": name,
        "messages": [{"role": "user", "content": f"tell me about {name}"}],
        "temperature": 0,
        "max_tokens": LONG,
        "ignore_eos": True,
    }


async def owner_of(pipeline: Pipeline, request_id: str) -> WorkerProcess:
    """The worker that is answering: the one with a running row."""
    await pipeline.until(lambda: len(pipeline.replies[request_id].events) > 5)
    for worker in pipeline.workers:
        if await worker.metric("headrace_num_requests_running") > 0:
            return worker
    raise AssertionError("nobody is answering")


def assert_whole(pipeline: Pipeline, oracle: Oracle, name: str) -> None:
    """The text of an undisturbed run, numbers contiguous, one last event, one attempt."""
    reply = pipeline.replies[name]
    body = long_request(name)
    ids = oracle.generate(oracle.prompt_ids(body["messages"]), LONG, ignore_eos=True)
    assert reply.text == oracle.text(ids)
    assert [event["sequence_number"] for event in reply.events] == list(range(len(reply.events)))
    assert len({event["attempt"] for event in reply.events}) == 1
    assert reply.finish_reason == "length"


async def test_killed_in_mid_sentence_the_other_worker_goes_on_with_the_same_sentence(
    pipeline: Pipeline, oracle: Oracle
) -> None:
    """kill -9 of the worker that is answering, within the session timeout + 2 s."""
    await pipeline.start_workers(2)
    await pipeline.ask(long_request("r1"), key="s1")
    victim = await owner_of(pipeline, "r1")
    victim.kill()
    num_before = len(pipeline.replies["r1"].events)
    await pipeline.finished(["r1"])
    assert 5 < num_before < len(pipeline.replies["r1"].events)
    assert_whole(pipeline, oracle, "r1")
    assert pipeline.replies["r1"].longest_pause_s < pipeline.settings.session_timeout_s + 2
    await pipeline.all_committed()


async def test_drained_in_mid_sentence_the_other_worker_goes_on_at_once(
    pipeline: Pipeline, oracle: Oracle
) -> None:
    """SIGTERM: exit code 0, and a pause below 2 s."""
    await pipeline.start_workers(2)
    await pipeline.ask(long_request("r1"), key="s1")
    victim = await owner_of(pipeline, "r1")
    assert await victim.terminate() == 0, victim.tail()
    await pipeline.finished(["r1"])
    assert_whole(pipeline, oracle, "r1")
    assert pipeline.replies["r1"].longest_pause_s < 2
    await pipeline.all_committed()


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
