"""OpenAI's own client against a gateway with a real worker behind it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel
from websockets.asyncio.client import connect

from headrace.consumers.gateway import build_app
from headrace.consumers.kafka_reader import find_partitions, reading
from headrace.consumers.response_log import ResponseLog
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.headers import EventType
from tests.documented_shapes import frame_problems, message_problems
from tests.faults import settings_of
from tests.pipeline import Pipeline, WorkerProcess, running_pipeline
from tests.unit.consumers.running import running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "tell me"}],
    "max_tokens": 4000,
    "extra_body": {"ignore_eos": True, "return_token_ids": True},
}


MESSAGES = {
    EventType.REQUESTED.value: "request",
    EventType.CHUNK.value: "chunk",
    EventType.COMPLETED.value: "completed",
    EventType.FAILED.value: "failed",
    EventType.CONTROL.value: "control",
}


class Verdict(BaseModel):
    """A short answer, whatever the model would like to say."""

    ok: bool
    colour: Literal["red", "green"]


@dataclass
class Served:
    """A gateway on a pipeline's topics, the pipeline's worker, and a client."""

    pipeline: Pipeline
    worker: WorkerProcess
    address: str
    client: openai.AsyncOpenAI
    model: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    kafka_bootstrap: str, redis_url: str, slow_model_dir: Path, tmp_path_factory: Any
) -> AsyncIterator[Served]:
    settings = settings_of(kafka_bootstrap, redis_url, slow_model_dir, prefix=f"t{uuid4().hex}")
    log, requests = ResponseLog(settings), RequestProducer(settings)
    async with running_pipeline(settings, tmp_path_factory.mktemp("served")) as pipeline:
        worker = await pipeline.start_worker()
        await requests.start()
        try:
            await log.start()
            app = build_app(settings, log, requests)
            async with (
                running(app, settings) as address,
                openai.AsyncOpenAI(
                    api_key="none", base_url=f"http://{address}/v1", max_retries=0, timeout=60
                ) as client,
            ):
                (model,) = (await client.models.list()).data
                yield Served(pipeline, worker, address, client, model.id)
        finally:
            await log.stop()
            await requests.stop()


async def until(check: Callable[[], Any]) -> None:
    """Wait until the coroutine `check()` says so."""
    async with asyncio.timeout(10):
        while not await check():  # noqa: ASYNC110 - a metric has no event
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_frees_its_row(served: Served) -> None:
    """Closed in mid-stream, or timed out while it waits for the whole: the engine stops at once.

    The event log tells it, not the gateway: `cancelled`, with few tokens after the last that was
    read; then no row is taken.
    """
    chats, replies = served.client.chat.completions, served.pipeline.replies

    async def is_idle() -> bool:
        return await served.worker.metric("headrace_num_requests_running") == 0

    stream = await chats.create(**LONG, model=served.model, stream=True)
    num_read = 0
    for _ in range(5):
        chunk = await anext(stream)
        num_read += len(chunk.to_dict()["choices"][0]["token_ids"])
    left_s = time.monotonic()
    await stream.close()
    await served.pipeline.finished([chunk.id])
    took_s = time.monotonic() - left_s
    await until(is_idle)
    last = replies[chunk.id].last
    num_tokens = last["usage"]["completion_tokens"]
    print(f"cancelled after {took_s * 1000:.0f} ms; {num_read} tokens read, {num_tokens} made")
    assert last["choices"][0]["finish_reason"] == "cancelled"
    assert num_tokens < LONG["max_tokens"]

    named = {"extra_body": LONG["extra_body"] | {"request_id": "r1"}}
    with pytest.raises(openai.APITimeoutError):
        await served.client.with_options(timeout=1.0).chat.completions.create(
            **LONG | named, model=served.model
        )
    await served.pipeline.finished(["r1"])
    assert replies["r1"].finish_reason == "cancelled"
    await until(is_idle)


async def test_a_parsed_answer_of_a_model(served: Served) -> None:
    """A model of random weights answers by the schema of a pydantic class; the chat goes on."""
    chats = served.client.chat.completions
    call: dict[str, Any] = {"model": served.model, "extra_body": {"session_id": "s1"}}
    hi: Any = [{"role": "user", "content": "hi"}]
    found = await chats.parse(**call, messages=hi, response_format=Verdict, max_tokens=400, seed=1)
    assert isinstance(found.choices[0].message.parsed, Verdict)
    again = await chats.create(**call, messages=hi, max_tokens=3)
    assert found.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens > found.usage.total_tokens


async def test_a_workers_refusals_through_the_client(served: Served) -> None:
    """What only a worker can know: the window, and the names of its model."""
    completions = served.client.completions
    with pytest.raises(openai.BadRequestError) as caught:
        await completions.create(model=served.model, prompt="x" * 60_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        await completions.create(model="gpt-4o", prompt="x")
    assert unknown.value.code == "model_not_found"


async def test_records_and_frames_are_as_the_document_says(served: Served) -> None:
    """Every record of the four topics, and frames of each type in both directions, by AsyncAPI."""
    topics = served.pipeline.settings.topics
    frames: list[dict[str, Any]] = [
        {"type": "ping"},
        {"type": "generate", "prompt": "hi", "max_tokens": 2, "request_id": "w1"},
        {"type": "subscribe", "request_id": "w1", "starting_after": -1},
        {"type": "cancel", "request_id": "w1"},
        {"type": "subscribe"},
    ]
    kinds: list[str] = []
    async with connect(f"ws://{served.address}/v1/stream") as socket:
        for frame in frames:
            assert bool(frame_problems(frame)) == (frame == {"type": "subscribe"})
            await socket.send(json.dumps(frame))
        while set(kinds) != {"pong", "accepted", "event", "error"}:
            sent = json.loads(await socket.recv())
            assert frame_problems(sent) == []
            kinds.append(sent["type"])
    await served.client.delete("/sessions/s1", cast_to=object)
    await served.pipeline.producer.send_and_wait(topics.requests, b"{", key=b"s2")
    seen = dict.fromkeys((topics.requests, topics.responses, topics.control, topics.dlq), 0)
    async with reading(served.pipeline.settings, max_partition_fetch_bytes=2**20) as consumer:
        consumer.assign([part for topic in seen for part in await find_partitions(consumer, topic)])
        await consumer.seek_to_beginning()
        while not all(seen.values()):
            for part, records in (await consumer.getmany(timeout_ms=200)).items():
                seen[part.topic] += len(records)
                for record in records:
                    assert record_problems(record, is_dead=part.topic == topics.dlq) == []


def record_problems(record: Any, *, is_dead: bool) -> list[str]:
    headers = {name: value.decode() for name, value in record.headers}
    if is_dead:
        return message_problems("dead_letter", None, headers)
    kind = headers.get("ce_type")
    return message_problems(MESSAGES[kind], json.loads(record.value), headers) if kind else []
