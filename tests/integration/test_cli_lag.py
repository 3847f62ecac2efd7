"""`headrace lag` as a process, and the lag in a gateway's metrics."""

import asyncio
import json
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaProducer

from headrace.deploy.processes import free_port
from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings, child_environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Topics with 5 requests in partition 1, and nobody that answers them."""
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, group=topic_prefix)
    await ensure_topics(settings, partitions=2)
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    body = orjson.dumps({"prompt": "x" * 40, "max_tokens": 20})
    for _ in range(5):
        await producer.send_and_wait(settings.topics.requests, body, key=b"s", partition=1)
    await producer.stop()
    return settings


async def _headrace(settings: Settings, *words: str, stdout: Any = PIPE) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", *words),
        env=child_environment(
            kafka=settings.kafka, topic_prefix=settings.topic_prefix, group=settings.group
        ),
        stdout=stdout,
        stderr=PIPE,
    )


async def test_a_table_and_an_object(settings: Settings) -> None:
    """Requests by default, with `--all` the control topic, too."""
    table, as_json = await asyncio.gather(
        _headrace(settings, "lag"), _headrace(settings, "lag", "--json", "--all")
    )
    out, err = await table.communicate()
    assert (table.returncode, err) == (0, b"")
    assert [line.split()[:2] for line in out.decode().splitlines()] == [
        ["partition", "records"],
        ["0", "0"],
        ["1", "5"],
        ["total", "5"],
    ]
    out, err = await as_json.communicate()
    assert (as_json.returncode, err) == (0, b"")
    found = json.loads(out)
    assert (found["records"], found["tokens"], len(found["partitions"])) == (5, 150, 4)


async def test_a_watch_prints_an_object_a_line_until_ctrl_c(settings: Settings) -> None:
    """Which ends it with exit code 0."""
    process = await _headrace(settings, "lag", "--watch", "--json")
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(2)]
    assert [json.loads(line)["records"] for line in lines] == [5, 5]
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_a_watch_on_a_terminal_redraws_its_table(settings: Settings) -> None:
    """And leaves the terminal as it was: the cursor comes back."""
    ours, theirs = pty.openpty()
    process = await _headrace(settings, "lag", "--watch", stdout=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the terminal's other end is closed
        while piece := await asyncio.to_thread(os.read, ours, 65536):
            shown += piece
            if shown.count(b"total") == 2:
                process.send_signal(signal.SIGINT)
    os.close(ours)
    assert (await process.wait(), shown.count(b"\x1b[?25h")) == (0, 1)


async def test_without_topics_it_says_what_to_do(settings: Settings) -> None:
    """One line, exit code 1."""
    process = await _headrace(settings, "lag", "--topic-prefix", f"{settings.topic_prefix}.none")
    out, err = await process.communicate()
    assert (process.returncode, out, err.count(b"\n")) == (1, b"", 1)
    assert b"headrace topics create" in err


async def test_a_gateway_shows_the_lag_while_no_worker_is_there(settings: Settings) -> None:
    """In its metrics, right to the record."""
    port = free_port()
    process = await _headrace(settings, "gateway", "--http-port", str(port))
    wanted = f'headrace_consumer_lag{{partition="1",topic="{settings.topics.requests}"}} 5.0'
    shown = ""
    try:
        async with asyncio.timeout(30), httpx.AsyncClient() as client:
            while wanted not in shown:
                await asyncio.sleep(0.1)
                with suppress(httpx.TransportError):
                    shown = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert "headrace_lag_tokens 150.0" in shown
    assert process.returncode == 0
