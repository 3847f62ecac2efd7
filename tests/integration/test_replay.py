"""Replays as a program, on real topics with real workers: what is exact, what is flagged, and that
nothing of the live pipeline is touched.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis

from headrace.consumers.answer_follower import AnswerFollower
from headrace.deploy.local_services import changed
from headrace.deploy.replaying.comparison import Outcome, Reason
from headrace.deploy.replaying.dump_file import check_dump
from headrace.deploy.replaying.recording import record
from headrace.deploy.replaying.report import Gate, Report
from headrace.deploy.replaying.selection import Selection
from headrace.deploy.replaying.trial import TrialOptions, replay
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.settings import Settings, child_environment
from tests.faults import settings_of
from tests.pipeline import Pipeline, running_pipeline
from tests.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

NUM_SINGLE = 30
NUM_TURNS = 4


def environment(settings: Settings) -> dict[str, str]:
    """What a command is told of the live pipeline."""
    return child_environment(
        kafka=settings.kafka,
        redis=settings.redis,
        topic_prefix=settings.topic_prefix,
        model=settings.model,
        dtype=settings.dtype,
        group=settings.group,
    )


async def headrace(settings: Settings, *args: str) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", *args),
        env=environment(settings),
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def single(number: int) -> dict[str, Any]:
    """Requests of every kind, the smallest among them."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {},
        {"seed": number, "top_p": 0.9},
        {"stream": False},
        {"return_token_ids": True, "temperature": 0.7},
        {"ignore_eos": True, "presence_penalty": 1.0, "temperature": 1.3},
    ]
    body = {"prompt": f"The river {number}", "max_tokens": 12 + number % 5}
    return body | kinds[number % len(kinds)]


async def ask_everything(pipeline: Pipeline) -> None:
    """Forty answers: keyless ones, conversations, refusals; a tombstone, and one id twice."""
    ids = [await pipeline.ask(single(number)) for number in range(NUM_SINGLE)]
    for session in ("s1", "s2"):
        for turn in range(NUM_TURNS):
            body = {"messages": [{"role": "user", "content": f"and {turn}?"}], "max_tokens": 8}
            ids.append(await pipeline.ask(body, key=session))
    twice = {"request_id": "twice", "prompt": "x", "max_tokens": 4}
    ids += [await pipeline.ask(twice, key="twice"), await pipeline.ask(twice, key="twice")]
    ids.append(await pipeline.ask(b"{broken"))
    await pipeline.ask(None, key="s1")
    await pipeline.finished(ids)
    await pipeline.all_committed()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorded(
    kafka_bootstrap: str,
    redis_url: str,
    tiny_model_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Pipeline]:
    """A pipeline with forty answers, made one by one; its worker goes on."""
    prefix = f"t{tmp_path_factory.mktemp('x').parent.name}-replays".replace("pytest-", "")
    settings = settings_of(kafka_bootstrap, redis_url, tiny_model_dir, prefix=prefix)
    async with running_pipeline(settings, tmp_path_factory.mktemp("recorded")) as running:
        await running.start_worker(max_batch_size=1)
        await ask_everything(running)
        yield running


async def live_state(pipeline: Pipeline) -> dict[str, Any]:
    """All that a replay must leave as it is, and all that it must remove."""
    settings = pipeline.settings
    consumer = AIOKafkaConsumer(**settings.kafka_options())
    admin = AIOKafkaAdminClient(**settings.kafka_options())
    redis = Redis.from_url(settings.redis)
    await consumer.start()
    await admin.start()
    try:
        names = [name for name in await admin.list_topics() if settings.topic_prefix in name]
        parts = [TopicPartition(name, part) for name in sorted(names) for part in range(4)]
        ends = await consumer.end_offsets(parts)
        groups = [group for group, _ in await admin.list_consumer_groups()]
        keys = [key async for key in redis.scan_iter(f"{settings.topic_prefix}*", count=1000)]
        return {
            "topics": sorted(names),
            "ends": {(part.topic, part.partition): end for part, end in ends.items()},
            "groups": sorted(group for group in groups if settings.topic_prefix in group),
            "committed": await admin.list_consumer_group_offsets(settings.group),
            "keys": sorted(keys),
        }
    finally:
        await consumer.stop()
        await admin.close()
        await redis.aclose()


@dataclass(frozen=True)
class Replays:
    """Two replays that ran side by side, and the live pipeline before and after."""

    before: dict[str, Any]
    after: dict[str, Any]
    same: tuple[int, str, str]
    """Exit code and outputs of the program: the live topics, same model, another batch size."""
    rows: Path
    plot: Path
    other: Report
    """Of a dump, with another model."""
    dump: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replays(recorded: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Replays:
    folder = tmp_path_factory.mktemp("replays")
    other_model = make_tiny_model(tmp_path_factory.mktemp("other-model"), seed=1)
    dump, rows, plot = folder / "day.jsonl", folder / "rows.jsonl", folder / "replay.png"
    other_settings = changed(recorded.settings, model=str(other_model))
    before = await live_state(recorded)
    done = await record(recorded.settings, Selection(), dump)
    assert (done.num_requests, done.num_unfinished) == (41, 0)
    async with asyncio.TaskGroup() as tasks:
        same = tasks.create_task(
            headrace(
                recorded.settings,
                *("replay", "--max-batch-size", "16", "--json"),
                *("--plot", str(plot), "--report", str(rows)),
            )
        )
        other = await replay(other_settings, dump, check_dump(dump), TrialOptions())
    after = await live_state(recorded)
    return Replays(before, after, same.result(), rows, plot, Report(other.rows, Gate()), dump)


async def test_a_replay_at_another_batch_size_is_exact(replays: Replays) -> None:
    """Forty of forty in float32; table, rows and picture say so."""
    code, out, err = replays.same
    assert code == 0, err
    report = json.loads(out)
    assert (report["requests"], report["exact"], report["not_comparable"]) == (40, 40, 0)
    assert report["duplicates"] == 1
    assert report["fingerprints"]["recorded"] == report["fingerprints"]["now"]
    model = Path(json.loads(replays.rows.read_text().splitlines()[0])["now"]["model"]).name
    assert report["models"]["now"] == [model]
    assert report["engine"] == {"model": model, "dtype": "float32", "max_batch_size": 16}
    outcomes = [json.loads(line)["outcome"] for line in replays.rows.read_text().splitlines()]
    assert outcomes == ["exact"] * 40
    assert replays.plot.read_bytes().startswith(b"\x89PNG")


async def test_another_model_is_flagged(replays: Replays) -> None:
    """With the first token that differs and both texts; later turns are not held against it."""
    report = replays.other
    assert report.problem is not None
    assert "compared answers: different" in report.problem
    assert report.counts[Outcome.DIFFERENT] > 25
    assert report.reasons == {Reason.EARLIER_TURN: 6}
    first = report.differing[0].verdict
    assert first.reason is Reason.TOKENS
    assert first.parting is not None
    assert 0 <= first.parting.token < 20
    assert first.parting.recorded != first.parting.answered


async def test_nothing_live_is_touched_and_nothing_is_left(replays: Replays) -> None:
    """Topics and their ends, groups and their offsets, Redis keys."""
    assert replays.before == replays.after


async def test_a_poisoned_dump_writes_nothing(
    recorded: Pipeline, replays: Replays, tmp_path: Path
) -> None:
    """One line on stderr with file and line."""
    lines = replays.dump.read_bytes().splitlines(keepends=True)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"".join([*lines[:-2], b'{"kind":"request","partition":0}\n', *lines[-2:]]))
    code, out, err = await headrace(recorded.settings, "restore", str(bad))
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert f"{bad}, line {len(lines) - 1}: offset is required" in line
    assert await live_state(recorded) == replays.after


async def test_a_shadow_answers_live_requests_and_nobody_notices(recorded: Pipeline) -> None:
    """Beside a live worker, at another batch size; what is left behind is the live answers."""
    settings, topics = recorded.settings, recorded.settings.topics
    before = await live_state(recorded)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "shadow", "--json"),
        *("--requests", "12", "--for", "1m", "--max-batch-size", "16"),
        env=environment(settings),
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async for line in process.stderr:
        if b"answering what" in line:
            break
    ids = [await recorded.ask(single(100 + number)) for number in range(10)]
    turn = {"messages": [{"role": "user", "content": "more?"}], "max_tokens": 8}
    ids += [await recorded.ask(turn, key=session) for session in ("s2", "new")]
    await recorded.finished(ids)
    report = json.loads(await process.stdout.read())
    assert await process.wait() == 0
    assert (report["requests"], report["exact"]) == (12, 11)
    assert report["not_comparable_because"] == {"the conversation before it is missing": 1}
    await recorded.all_committed()
    after = await live_state(recorded)
    assert [after[name] for name in ("topics", "groups")] == [
        before[name] for name in ("topics", "groups")
    ]
    assert not [key for key in after["keys"] if b".shadow-" in key]
    num_events = sum(len(recorded.replies[name].events) for name in ids)
    for topic, expected in ((topics.responses, num_events), (topics.control, 0), (topics.dlq, 0)):
        grown = [after["ends"][topic, part] - before["ends"][topic, part] for part in range(4)]
        assert sum(grown) == expected, topic


async def test_a_replay_that_is_ended_cleans_up(recorded: Pipeline) -> None:
    """By SIGTERM, as CI does it; its workers are somebody else's here, and do not come."""
    before = await live_state(recorded)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "replay", "--workers", "0", "--id", "x1"),
        env=environment(recorded.settings),
        stdout=PIPE,
        stderr=PIPE,
    )
    requests = f"{recorded.settings.topic_prefix}.replay-x1.requests"
    async with asyncio.timeout(60):
        while (await live_state(recorded))["ends"].get((requests, 0)) in (None, 0):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    process.terminate()
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert b"Traceback" not in err
    assert b".replay-x1\n" in err.splitlines(keepends=True)[-1]
    assert b"removed: topics, group and keys" in err
    assert await live_state(recorded) == before


async def test_a_shadow_that_is_ended_reports_what_there_is(recorded: Pipeline) -> None:
    """And cleans up; with exit code 1, because it is not what was asked for."""
    before = await live_state(recorded)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "shadow", "--json", "--for", "1h"),
        *("--id", "x2"),
        env=environment(recorded.settings),
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if b"answering what" in line:
            break
    ids = [await recorded.ask(single(200 + number)) for number in range(3)]
    await recorded.finished(ids)
    place = {"answer_prefix": f"{recorded.settings.topic_prefix}.shadow-x2"}
    answers = AnswerFollower(
        recorded.settings.model_copy(update=place),
        {(DEFAULT_TENANT, request_id) for request_id in ids},
        on_event=lambda _: None,
        on_finished=lambda: None,
    )
    assert await answers.follow(silence_s=60)
    process.terminate()
    out, err = await process.communicate()
    report = json.loads(out)
    assert process.returncode == 1
    assert (report["passed"], report["interrupted"]) == (False, True)
    assert (report["requests"], report["exact"]) == (3, 3)
    assert b"removed: topics, group and keys" in err
    assert err.splitlines()[-1] == b"headrace: interrupted"
    await recorded.all_committed()
    after = await live_state(recorded)
    assert [after[name] for name in ("topics", "groups")] == [
        before[name] for name in ("topics", "groups")
    ]
