"""The gateway's HTTP side over a real Kafka: OpenAI calls, events as SSE, cancel on disconnect."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from headrace.consumers.gateway import Bounds, build_app
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request_id import new_request_id
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import (
    TOPIC_PARTITIONS,
    ResponseWriter,
    ScriptedSink,
    answer,
    overloaded,
    writer,
)
from tests.unit.consumers.running import running

pytestmark = pytest.mark.integration

WORDS = ["Paris ", "is ", "the ", "capital."]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Stack:
    """A running gateway, its scripted worker, and a client."""

    settings: Settings
    log: ResponseLog
    events: ResponseWriter
    sink: ScriptedSink
    http: httpx.AsyncClient


@pytest.fixture
async def stack(kafka_bootstrap: str, topic_prefix: str) -> AsyncIterator[Stack]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, model="test-model")
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    log = ResponseLog(settings)
    await log.start()
    try:
        async with ResponseWriter(settings) as events, ScriptedSink(events, WORDS) as sink:
            app = build_app(settings, log, sink, bounds=Bounds(heartbeat_s=0.7, no_progress_s=1.5))
            async with (
                running(app, settings) as address,
                httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as http,
            ):
                yield Stack(settings, log, events, sink, http)
    finally:
        await log.stop()


async def sse(response: httpx.Response) -> list[Any]:
    """The data of a stream, as JSON; `[DONE]` and comments as text."""
    found: list[Any] = []
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            found.append(text if text == "[DONE]" else json.loads(text))
        elif line.startswith(("id: ", ":")):
            found.append(line)
    return found


def of_kind(found: list[Any]) -> list[dict[str, Any]]:
    return [item for item in found if isinstance(item, dict)]


async def settled(check: Any) -> None:
    """Wait until `check()` holds."""
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


async def test_a_chat_call_without_stream_gets_one_completion(stack: Stack) -> None:
    """The produced request asks for no stream, and the answer has the official shape."""
    answered = await stack.http.post("/v1/chat/completions", json=CHAT)
    body = answered.json()
    assert answered.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "".join(WORDS),
        "refusal": None,
    }
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 8
    (sent,) = stack.sink.submitted
    assert sent["stream"] is False
    assert sent["context"] == "replace"
    assert sent["session_id"] == sent["request_id"] == sent["_session"] == body["id"]
    assert stack.sink.tenants == ["default"]
    assert stack.sink.cancelled == []


@pytest.mark.parametrize("usage", [True, False])
async def test_a_chat_stream_is_chunks_and_done(stack: Stack, usage: bool) -> None:
    """Chunks hold no usage, unless asked for: then one more chunk does."""
    call = CHAT | {"stream": True, "stream_options": {"include_usage": usage}}
    async with stack.http.stream("POST", "/v1/chat/completions", json=call) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = await sse(response)
    chunks = of_kind(found)
    assert found[-1] == "[DONE]"
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks if c["choices"])
    assert text == "".join(WORDS)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len(chunks) == len(WORDS) + usage
    if usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 3
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [True, False])
async def test_text_completions_have_their_own_shape(stack: Stack, stream: bool) -> None:
    """`/v1/completions`: text in place of messages."""
    call = {"model": "m", "prompt": ["Once"], "stream": stream}
    async with stack.http.stream("POST", "/v1/completions", json=call) as response:
        if stream:
            found = of_kind(await sse(response))
        else:
            await response.aread()
            found = [response.json()]
    assert {item["object"] for item in found} == {"text_completion"}
    assert "".join(item["choices"][0]["text"] for item in found) == "".join(WORDS)
    assert stack.sink.submitted[0]["prompt"] == "Once"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"background": 1}, "background"),
        ({"stream_options": 1}, "stream_options"),
    ],
)
async def test_a_bad_call_is_refused_before_it_is_produced(
    stack: Stack, change: dict[str, Any], param: str
) -> None:
    """400 in OpenAI's form, with the field; nothing reaches Kafka."""
    answered = await stack.http.post("/v1/chat/completions", json=CHAT | change)
    assert answered.status_code == 400
    assert answered.json()["error"]["code"] == "invalid_value"
    assert answered.json()["error"]["param"] == param
    assert stack.sink.submitted == []


async def test_what_is_no_json_object_or_too_large_is_refused(stack: Stack) -> None:
    """400 `invalid_json`, 413, 404 and 405 all have an error body."""
    url = "/v1/chat/completions"
    big = json.dumps(CHAT | {"user": "x" * stack.settings.max_request_bytes})
    for content, status in ((b"{", 400), (b"[]", 400), (b"\xff", 400), (big.encode(), 413)):
        answered = await stack.http.post(url, content=content)
        assert (answered.status_code, "error" in answered.json()) == (status, True)
    assert (await stack.http.get("/nothing")).json()["error"]["message"] == "Not Found"
    assert (await stack.http.get(url)).status_code == 405


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400),
        (ErrorCode.MODEL_NOT_FOUND, 404),
        (ErrorCode.OVERLOADED, 503),
        (ErrorCode.INTERNAL_ERROR, 500),
    ],
)
async def test_a_failed_request_has_its_status(
    stack: Stack, stream: bool, code: ErrorCode, status: int
) -> None:
    """A `failed` event that comes first is an HTTP error, for streams too."""
    stack.sink.error = RequestError(code, "no")
    answered = await stack.http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert answered.status_code == status
    assert answered.json()["error"]["code"] == code
    assert ("retry-after" in answered.headers) == (status == 503)
    assert stack.sink.cancelled == []


async def test_an_error_in_a_begun_stream_is_its_last_data(stack: Stack) -> None:
    """Text that was sent stays; then the error, then the end."""
    stack.sink.silent = True
    call = CHAT | {"stream": True, "request_id": "r1"}
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(read_stream(stack, call))
        await settled(lambda: stack.sink.submitted)
        await stack.events.write(writer("r1", "r1").chunk(0, "He").value, session_id="r1")
        value = writer("r1", "r1").failed(1, overloaded()).value
        await stack.events.write(value, session_id="r1")
    found = task.result()
    assert found[0]["choices"][0]["delta"]["content"] == "He"
    assert found[1]["error"]["code"] == "overloaded"
    assert found[2] == "[DONE]"


async def read_stream(stack: Stack, call: dict[str, Any]) -> list[Any]:
    async with stack.http.stream("POST", "/v1/chat/completions", json=call) as response:
        assert response.status_code == 200
        return await sse(response)


async def test_a_larger_attempt_does_not_repeat_text_to_openai_clients(stack: Stack) -> None:
    """Contract §3: forget the text so far; these clients cannot, so they get what is new."""
    stack.sink.silent = True
    call = CHAT | {"stream": True, "request_id": "r1"}
    old = answer("r1", "r1", WORDS)[:2]
    new = answer("r1", "r1", ["Paris is ", "the ", "capital."], attempt=2)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(read_stream(stack, call))
        await settled(lambda: stack.sink.submitted)
        for value in [*old, new[0], old[1], *new[1:]]:
            await stack.events.write(value, session_id="r1")
    text = "".join(c["choices"][0]["delta"]["content"] for c in of_kind(task.result()))
    assert text == "".join(WORDS)


async def test_a_call_nobody_answers_ends_with_heartbeats_and_an_error(stack: Stack) -> None:
    """Queued: comments keep the connection; after the bound, `overloaded`, and it is cancelled."""
    stack.sink.silent = True
    found = await read_stream(stack, CHAT | {"stream": True})
    assert ": keep-alive" in found
    assert of_kind(found)[-1]["error"]["code"] == "overloaded"
    answered = await stack.http.post("/v1/chat/completions", json=CHAT)
    assert answered.status_code == 503
    assert len(stack.sink.cancelled) == 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("background", [True, False])
async def test_a_client_that_leaves_cancels_unless_in_background(
    stack: Stack, stream: bool, background: bool
) -> None:
    """H1: the connection is gone, so is the generation; readers and tasks are back to none."""
    stack.sink.pause_s = 0.3
    call = CHAT | {"stream": stream, "background": background}
    before = len(asyncio.all_tasks())
    task = asyncio.create_task(stack.http.post("/v1/chat/completions", json=call, timeout=10))
    await settled(lambda: stack.sink.submitted)
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})
    await settled(lambda: stack.log.num_subscriptions == 0)
    (sent,) = stack.sink.submitted
    assert stack.sink.cancelled == ([] if background else [sent["request_id"]])
    assert "background" not in sent
    await settled(lambda: len(asyncio.all_tasks()) <= before + 2)


async def test_a_repeated_id_gets_the_answer_that_is_there(stack: Stack) -> None:
    """The same Idempotency-Key reads the first answer from the log, whole, streamed or not."""
    headers = {"Idempotency-Key": "key-1"}
    for stream in (True, False, True):
        call = CHAT | {"stream": stream}
        answered = await stack.http.post("/v1/chat/completions", json=call, headers=headers)
        assert answered.status_code == 200
        if not stream:
            content = answered.json()["choices"][0]["message"]["content"]
            assert content == "".join(WORDS)
    assert {sent["request_id"] for sent in stack.sink.submitted} == {"key-1"}


async def test_fields_and_trace_are_handed_on(stack: Stack) -> None:
    """§2's fields go through, the tenant does not, the trace context becomes headers."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = CHAT | {"session_id": "s1", "top_k": 5, "tenant": "evil", "user": "u", "seed": None}
    await stack.http.post("/v1/chat/completions", json=call, headers={"traceparent": parent})
    (sent,) = stack.sink.submitted
    assert (sent["top_k"], sent["tenant"], sent["user"]) == (5, "default", "u")
    assert (sent["_session"], "context" in sent, "seed" in sent) == ("s1", False, False)
    assert list(stack.sink.traces[0]) == [("traceparent", parent.encode())]


async def test_models_health_metrics_and_page(stack: Stack) -> None:
    """The rest of the paths."""
    models = (await stack.http.get("/v1/models")).json()
    assert models["data"][0]["id"] == "test-model"
    assert (await stack.http.get("/v1/models/test-model")).json()["object"] == "model"
    assert (await stack.http.get("/v1/models/other")).status_code == 404
    assert (await stack.http.get("/healthz")).status_code == 200
    assert (await stack.http.get("/readyz")).status_code == 200
    page = await stack.http.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for number in range(30):
        await stack.http.get(f"/v1/requests/none-{number}/nothing")
    metrics = (await stack.http.get("/metrics")).text
    assert 'headrace_gateway_http_requests_total{route="models",status="200"} 2.0' in metrics
    assert "none-1" not in metrics
    await stack.log.stop()
    assert (await stack.http.get("/readyz")).status_code == 503


async def test_events_of_a_request_can_be_read_again_from_any_place(stack: Stack) -> None:
    """SSE: from the start, behind a number, behind a cursor; then it ends with the last event."""
    for value in answer("r1", "s1", WORDS):
        await stack.events.write(value, session_id="s1")

    async def read(**place: Any) -> list[Any]:
        headers = place.pop("headers", {})
        async with stack.http.stream(
            "GET", "/v1/requests/r1/events", params=place, headers=headers
        ) as response:
            assert response.status_code == 200
            return [item for item in await sse(response) if item != ": keep-alive"]

    for session in ({}, {"session_id": "s1"}):
        whole = await read(**session)
        assert [item["sequence_number"] for item in of_kind(whole)] == [0, 1, 2, 3]
        rest = await read(starting_after=1, **session)
        assert [item["sequence_number"] for item in of_kind(rest)] == [2, 3]
        assert rest == whole[4:]
    cursors = [item.removeprefix("id: ") for item in whole if isinstance(item, str)]
    assert await read(cursor=cursors[2]) == whole[6:]
    assert await read(headers={"Last-Event-ID": cursors[0]}) == whole[2:]
    assert await read(headers={"Last-Event-ID": ""}) == whole
    assert await read(cursor=cursors[0], headers={"Last-Event-ID": cursors[2]}) == whole[6:]
    url = "/v1/requests/r1/events"
    for params in ({"cursor": cursors[3]}, {"starting_after": "3"}):
        assert (await stack.http.get(url, params=params)).status_code == 204
    for params, status in (
        ({"cursor": "x"}, 400),
        ({"starting_after": "x"}, 400),
        ({"cursor": "c1.0.999999"}, 410),
    ):
        assert (await stack.http.get(url, params=params)).status_code == status
    late = await stack.http.get(url, params={"starting_after": "999"})
    assert late.status_code == 410
    assert late.json()["error"]["code"] == "resume_gap"


async def test_events_follow_an_answer_that_is_being_written(stack: Stack) -> None:
    """I9 over HTTP: replay, then live, without a gap or a repeat."""
    stack.sink.words = [f"w{number} " for number in range(40)]
    stack.sink.pause_s = 0.01
    call = CHAT | {"stream": True, "request_id": "r1", "session_id": "s1"}

    async def follow(delay_s: float) -> list[int]:
        await asyncio.sleep(delay_s)
        params = {"session_id": "s1"}
        async with stack.http.stream("GET", "/v1/requests/r1/events", params=params) as response:
            return [item["sequence_number"] for item in of_kind(await sse(response))]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read_stream(stack, call))
        readers = [tasks.create_task(follow(0.05 * number)) for number in range(6)]
    for reader in readers:
        assert list(range(40)) == reader.result()


async def test_a_request_can_be_cancelled_by_its_id(stack: Stack) -> None:
    """`POST /v1/requests/{id}/cancel`: the session from the body, the query, or the id itself."""
    stack.sink.pause_s = 0.05
    stack.sink.words = ["x "] * 100
    call = CHAT | {"stream": True, "request_id": "r/1"}
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(read_stream(stack, call))
        await settled(lambda: stack.sink.submitted)
        answered = await stack.http.post("/v1/requests/r%2F1/cancel")
        assert answered.status_code == 202
        assert answered.json() == {"request_id": "r/1", "session_id": "r/1"}
    assert of_kind(task.result())[-1]["choices"][0]["finish_reason"] == "cancelled"
    answered = await stack.http.post("/v1/requests/r%0A%2F/cancel")
    assert answered.json()["request_id"] == "r\n/"
    answered = await stack.http.post("/v1/requests/r2/cancel", json={"session_id": "s2"})
    assert answered.json()["session_id"] == "s2"

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"session_id":'
        yield b'"s3"}'

    answered = await stack.http.post("/v1/requests/r2/cancel", content=pieces())
    assert answered.json()["session_id"] == "s3"
    for bad in ({"json": {"session_id": 3}}, {"params": {"session_id": "x" * 513}}):
        answered = await stack.http.post("/v1/requests/r2/cancel", **bad)
        assert (answered.status_code, answered.json()["error"]["param"]) == (400, "session_id")


async def test_keys_decide_the_tenant(stack: Stack, tmp_path: Path) -> None:
    """401 without a known key; a tenant reads its own events only; pages of others are refused."""
    keys = tmp_path / "keys.json"
    digest = hashlib.sha256(b"key-b").hexdigest()
    keys.write_text(json.dumps({"key-a": "acme", f"sha256:{digest}": "other"}))
    settings = stack.settings.model_copy(update={"api_keys_file": keys})
    app = build_app(settings, stack.log, stack.sink, bounds=Bounds(no_progress_s=2))
    async with (
        running(app, settings) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as http,
    ):
        for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic key-a"}):
            answered = await http.post("/v1/chat/completions", json=CHAT, headers=headers)
            assert answered.status_code == 401
            assert answered.json()["error"]["code"] == "unauthorized"
        for key in ("key-a", "key-b"):
            headers = {"Authorization": f"Bearer {key}"}
            call = CHAT | {"tenant": "evil", "request_id": "r1"}
            answered = await http.post("/v1/chat/completions", json=call, headers=headers)
            assert answered.status_code == 200
        assert stack.sink.tenants == ["acme", "other"]
        assert [sent["tenant"] for sent in stack.sink.submitted] == ["acme", "other"]
        foreign = headers | {"Origin": "http://evil.example"}
        assert (await http.get("/v1/models", headers=foreign)).status_code == 401
        own = headers | {"Origin": f"http://{address}"}
        assert (await http.get("/v1/models", headers=own)).status_code == 200


async def test_a_request_that_nobody_sent_is_unknown(stack: Stack) -> None:
    """404, unless it waits in the requests topic: then its reader waits too."""
    waiting = {"request_id": "r1", "session_id": "s1", "prompt": "x"}
    producer = AIOKafkaProducer(bootstrap_servers=stack.settings.kafka)
    await producer.start()
    try:
        value = json.dumps(waiting).encode()
        await producer.send_and_wait(stack.settings.topics.requests, value, key=b"s1")
    finally:
        await producer.stop()
    for name in ("r2", new_request_id()):
        answered = await stack.http.get(f"/v1/requests/{name}/events")
        assert answered.status_code == 404
        assert answered.json()["error"]["param"] == "request_id"
    for params in ({}, {"session_id": "s1"}):
        url = "/v1/requests/r1/events"
        async with stack.http.stream("GET", url, params=params) as response:
            assert response.status_code == 200
