"""`headrace bench` as a program: on a whole pipeline, and on one that loses events."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from headrace.deploy.replaying.dump_file import DumpWriter
from headrace.deploy.topics import ensure_topics
from headrace.schemas.dump import DumpHeader, DumpRecord
from headrace.schemas.settings import Settings, child_environment, load_settings
from tests.loads import chunk, last
from tests.pipeline import Pipeline, running_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


async def started(settings: Settings, *args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "bench", *args),
        env=child_environment(kafka=settings.kafka, topic_prefix=settings.topic_prefix),
        stdout=PIPE,
        stderr=PIPE,
    )


async def bench(settings: Settings, *args: str) -> tuple[int | None, str, str]:
    """Run to the end: exit code, standard output, standard error."""
    process = await started(settings, *args)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.alone
async def test_a_load_on_a_pipeline(
    kafka_bootstrap: str, redis_url: str, topic_prefix: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Seconds of conversations, then a recording, then one that is interrupted: every answer
    is right, the report has them all, and the exit code says so.
    """
    settings = load_settings(
        kafka=kafka_bootstrap,
        redis=redis_url,
        topic_prefix=topic_prefix,
        group=topic_prefix,
        model=str(tiny_model_dir),
    )
    async with running_pipeline(settings, tmp_path) as pipeline:
        await pipeline.start_worker()
        await conversations(settings, tmp_path)
        await recording(settings, tmp_path)
        await interruption(settings, pipeline)


async def conversations(settings: Settings, folder: Path) -> None:
    shapes, rows, plot = (folder / name for name in ("shapes.json", "rows.jsonl", "run.png"))
    talk = {"turns": 2, "think_s": 0.1, "prompt_words": 4, "max_tokens": [3, 9]}
    shapes.write_text(json.dumps([talk]))
    code, out, err = await bench(
        settings,
        *("--rate", "10", "--duration", "3s", "--warm-up", "1s", "--seed", "7", "--json"),
        *("--shapes", str(shapes), "--out", str(rows), "--plot", str(plot)),
        *("--fail-if", "errors>0", "--fail-if", "ttft_p99>60"),
    )
    assert (code, err) == (0, "")
    report = json.loads(out)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    measured = [line for line in lines if line["measured"]]
    assert report["requests"]["finished"] == report["requests"]["requests"] == len(measured) > 30
    assert report["tokens"]["output"] == sum(line["output_tokens"] for line in measured)
    assert report["latency_s"]["ttft"]["count"] == len(measured)
    assert {"1", "2", "3+"} == report["by_turn"].keys()
    assert (report["passed"], report["num_wrong"]) == (True, 0)
    assert plot.read_bytes().startswith(b"\x89PNG")


async def recording(settings: Settings, folder: Path) -> None:
    path = folder / "recorded.jsonl.zst"
    body = json.dumps({"prompt": "a b", "max_tokens": 3, "request_id": "old"}).encode()
    with DumpWriter(path, DumpHeader(settings.topic_prefix, 4, "2026-01-01T00:00:00Z")) as dump:
        for number in range(20):
            key = f"s{number % 3}".encode()
            dump.write(DumpRecord("request", 0, number, 100 * number, 0, key, body, ()))
    code, out, err = await bench(settings, "--from", str(path), "--speed", "2")
    assert (code, err) == (0, "")
    assert out.startswith("20 requests in ")
    assert "20 finished" in out


async def interruption(settings: Settings, pipeline: Pipeline) -> None:
    num_before = len(pipeline.order)
    process = await started(settings, "--rate", "20", "--shape", "one-shot", "--json")
    await pipeline.until(lambda: len(pipeline.order) >= num_before + 40)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 1
    report = json.loads(out)
    requests = report["requests"]
    assert requests["finished"] >= 40
    assert requests["requests"] == requests["finished"] + requests["cancelled"]
    assert (report["passed"], report["reasons"]) == (False, ["interrupted"])
    assert err.decode().splitlines()[-1] == "headrace: interrupted"


@asynccontextmanager
async def answering(settings: Settings) -> AsyncIterator[None]:
    """A worker that loses an event of the second answer, and says one of the third twice, with
    two contents.
    """
    consumer = AIOKafkaConsumer(
        settings.topics.requests, **settings.kafka_options(), auto_offset_reset="earliest"
    )
    producer = AIOKafkaProducer(**settings.kafka_options())

    async def answer() -> None:
        number = 0
        async for record in consumer:
            request = json.loads(record.value)
            number += 1
            events = [chunk(0, "a"), chunk(1, "b"), last(2, "c", 3)]
            if number == 2:
                del events[1]
            if number == 3:
                events.insert(1, chunk(0, "x"))
            for event in events:
                await send(record, request, event)

    async def send(record: Any, request: dict[str, Any], event: dict[str, Any]) -> None:
        names = {"id": request["request_id"], "session_id": request["session_id"]}
        value = json.dumps(event | names).encode()
        await producer.send_and_wait(
            settings.topics.responses, value, key=record.key, partition=record.partition
        )

    await consumer.start()
    await producer.start()
    task = asyncio.ensure_future(answer())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await consumer.stop()
        await producer.stop()


async def test_lost_and_contradicting_events_fail_the_run(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """They are told apart, in words and as JSON."""
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=1)
    async with answering(settings):
        code, out, err = await bench(
            settings, "--requests", "4", "--rate", "50", "--shape", "one-shot", "--json"
        )
    report = json.loads(out)
    assert code == 1
    assert (report["requests"]["finished"], report["requests"]["wrong"]) == (2, 2)
    assert report["errors"] == {"events_lost": 1, "two_contents": 1}
    assert err.count("headrace: wrong answer") == 2
