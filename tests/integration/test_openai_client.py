"""OpenAI's own Python client, unchanged, against a live gateway with a scripted worker."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import openai
import orjson
import pytest
import pytest_asyncio
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from pydantic import BaseModel

from headrace.consumers.context import Bounds
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from headrace.schemas.settings import Settings
from tests.gateway import WORDS, ScriptedGateway, scripted_gateway
from tests.unit.consumers.doubles import script, writer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TEXT = "".join(WORDS)
MODEL = "test-model"
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_gateway(kafka_bootstrap: str) -> AsyncIterator[ScriptedGateway]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=f"t{uuid4().hex[:12]}", model=MODEL)
    async with scripted_gateway(settings, bounds=Bounds(heartbeat_s=0.2, max_open=8)) as gateway:
        yield gateway


@pytest.fixture
def gateway(one_gateway: ScriptedGateway) -> ScriptedGateway:
    """The module's gateway, whose worker answers WORDS at once."""
    sink = one_gateway.sink
    sink.words, sink.pause_s, sink.silent, sink.error = list(WORDS), 0.0, False, None
    sink.refusals.clear()
    for seen in (sink.submitted, sink.cancelled, sink.tenants, sink.traces):
        seen.clear()
    return one_gateway


async def until(check: Callable[[], object]) -> None:
    """Wait until `check()` holds."""
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.005)


async def test_a_chat_whole_and_streamed(gateway: ScriptedGateway) -> None:
    """Text, finish reason, usage and ids as the client's types have them, strictly."""
    async with gateway.client() as client:
        whole = await client.chat.completions.create(model=MODEL, messages=HI)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 8
    assert whole._request_id == whole.id
    ChatCompletion.model_validate(whole.to_dict(), strict=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [chunk.usage is not None for chunk in chunks] == [False] * len(WORDS) + [True]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)


async def test_a_text_completion_whole_and_streamed(gateway: ScriptedGateway) -> None:
    """`/v1/completions`; a chunk's finish reason is null before the end, as OpenAI's own is."""
    async with gateway.client() as client:
        whole = await client.completions.create(model=MODEL, prompt="Once")
        stream = await client.completions.create(model=MODEL, prompt="Once", stream=True)
        chunks = [chunk async for chunk in stream]
    Completion.model_validate(whole.to_dict(), strict=True)
    assert whole.choices[0].text == TEXT
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    for chunk in chunks:
        body = chunk.to_dict()
        choice: dict[str, Any] = body["choices"][0]  # type: ignore[index]
        Completion.model_validate(
            body | {"choices": [choice | {"finish_reason": "stop"}]}, strict=True
        )


async def test_the_sync_client_does_the_same(gateway: ScriptedGateway) -> None:
    """In a thread, as scripts use it; the raw answers show the request's id in a header."""

    def use() -> None:
        with openai.OpenAI(api_key="none", base_url=f"{gateway.url}/", max_retries=0) as client:
            chats = client.chat.completions
            assert chats.create(model=MODEL, messages=HI).choices[0].message.content == TEXT
            raw = chats.with_raw_response.create(model=MODEL, messages=HI, stream=True)
            chunks = list(raw.parse())
            assert raw.headers["x-request-id"] == chunks[0].id == raw.request_id
            with chats.with_streaming_response.create(model=MODEL, messages=HI) as response:
                assert response.parse().id == response.headers["x-request-id"]
            texts = client.completions.create(model=MODEL, prompt="x", stream=True)
            assert "".join(chunk.choices[0].text for chunk in texts) == TEXT
            assert [model.id for model in client.models.list()] == [MODEL]

    await asyncio.to_thread(use)


async def test_the_stream_helper_and_raw_answers(gateway: ScriptedGateway) -> None:
    """`chat.completions.stream` accumulates the same text; `with_streaming_response` has lines."""
    async with gateway.client() as client:
        async with client.chat.completions.stream(model=MODEL, messages=HI) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == TEXT
        assert kinds.count("content.delta") == len(WORDS)
        async with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=HI, stream=True
        ) as response:
            lines = [line async for line in response.iter_lines() if line.startswith("data: ")]
    assert orjson.loads(lines[0].removeprefix("data: "))["id"] == response.request_id
    assert lines[-1] == "data: [DONE]"


async def test_models(gateway: ScriptedGateway) -> None:
    """List and retrieve; another name is not found."""
    async with gateway.client() as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "headrace"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("gpt-4o")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


class City(BaseModel):
    """What a parsed answer holds."""

    name: str
    people: int


async def test_a_parsed_answer(gateway: ScriptedGateway) -> None:
    """`parse` sends a JSON schema and reads the answer by it."""
    gateway.sink.words = ['{"name": "Paris", ', '"people": 2100000}']
    async with gateway.client() as client:
        found = await client.chat.completions.parse(model=MODEL, messages=HI, response_format=City)
        async with client.chat.completions.stream(
            model=MODEL, messages=HI, response_format=City
        ) as stream:
            streamed = (await stream.get_final_completion()).choices[0].message.parsed
    assert found.choices[0].message.parsed == streamed == City(name="Paris", people=2_100_000)
    sent = gateway.sink.submitted[0]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"]["required"] == ["name", "people"]


async def test_our_own_fields_in_the_extra_body(gateway: ScriptedGateway) -> None:
    """Session, context and background reach the request; what nobody reads is named."""
    extra = {"session_id": "s1", "context": "replace", "background": True, "turn": 0}
    async with gateway.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "user", "content": "hi", "name": "ann"},
            ],
            max_completion_tokens=7,
            seed=3,
            stop="END",
            logit_bias={"5": -100},
            metadata={"k": "v"},
            user="ann",
            logprobs=True,
            tools=[{"type": "function", "function": {"name": "f"}}],
            extra_body=extra | {"bad name\r\n": 1},
        )
    (sent,) = gateway.sink.submitted
    assert (sent["_session"], sent["context"], sent["turn"]) == ("s1", "replace", 0)
    assert (sent["max_completion_tokens"], sent["seed"], sent["stop"]) == (7, 3, "END")
    assert raw.headers["headrace-ignored-fields"] == "logprobs, tools, user"
    assert raw.parse().choices[0].message.content == TEXT


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0"),
        ({"temperature": 3}, "temperature"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"n": 2}, "n"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ],
)
async def test_a_bad_field_is_named(
    gateway: ScriptedGateway, change: dict[str, Any], param: str
) -> None:
    """BadRequestError with code, type, and the path of the field in `param` and the message."""
    call: dict[str, Any] = {"model": MODEL, "messages": HI, "extra_body": change}
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**call)
    problem = caught.value
    assert (problem.code, problem.type) == ("invalid_value", "invalid_request_error")
    assert (problem.param or "").startswith(param)
    assert problem.message
    assert problem.request_id
    assert gateway.sink.submitted == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, openai.BadRequestError),
        (ErrorCode.MODEL_NOT_FOUND, openai.NotFoundError),
        (ErrorCode.RATE_LIMITED, openai.RateLimitError),
        (ErrorCode.OVERLOADED, openai.InternalServerError),
        (ErrorCode.INTERNAL_ERROR, openai.InternalServerError),
    ],
)
async def test_a_workers_refusal_is_an_error_of_its_class(
    gateway: ScriptedGateway, code: ErrorCode, kind: type[openai.APIStatusError], stream: bool
) -> None:
    """A `failed` event that comes first, with its code and its param; the call keeps its name."""
    gateway.sink.error = RequestError(code, "not so", "max_tokens")
    async with gateway.client() as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(model=MODEL, messages=HI, stream=stream)
    assert (caught.value.code, caught.value.param) == (code.value, "max_tokens")
    assert caught.value.request_id == gateway.sink.submitted[0]["request_id"]


async def test_errors_of_the_transport_have_their_classes(gateway: ScriptedGateway) -> None:
    """An unknown path, a body that is too large, a Kafka that is away."""
    async with gateway.client() as client:
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model=MODEL, input="x")
        big = "x" * gateway.settings.max_request_bytes
        with pytest.raises(openai.APIStatusError, match="bytes at most") as caught:
            await client.completions.create(model=MODEL, prompt=big)
        assert caught.value.status_code == 413
        gateway.sink.refusals.append(UnavailableError("Kafka", 1.0))
        with pytest.raises(openai.InternalServerError) as away:
            await client.chat.completions.create(model=MODEL, messages=HI)
    assert (away.value.status_code, away.value.code) == (503, "overloaded")
    assert away.value.response.headers["retry-after"] == "1"


async def test_the_client_tries_again_after_429_and_503(gateway: ScriptedGateway) -> None:
    """It waits as `Retry-After` says and sends the same body; it names no idempotency key."""
    gateway.sink.refusals += [
        UnavailableError("Kafka", 1.0),
        RequestError(ErrorCode.RATE_LIMITED, "too much"),
    ]
    async with gateway.client(max_retries=1) as client, asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(client.chat.completions.create(model=MODEL, messages=HI))
            for _ in range(2)
        ]
    for call in calls:
        assert call.result().choices[0].message.content == TEXT
    assert len({sent["request_id"] for sent in gateway.sink.submitted}) == 4


async def test_an_error_in_mid_stream_is_an_api_error(gateway: ScriptedGateway) -> None:
    """The text so far stays; then the error with its code, not a quiet end."""
    gateway.sink.silent = True
    async with gateway.client() as client, asyncio.TaskGroup() as tasks:
        name = f"r{uuid4().hex}"
        call = client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, extra_body={"request_id": name}
        )
        opened = tasks.create_task(call)
        await until(lambda: gateway.sink.submitted)
        build = writer(name, name)
        await gateway.events.write(build.chunk(0, "He").value, session_id=name)
        stream = await opened
        first = await anext(stream)
        problem = RequestError(ErrorCode.OUT_OF_MEMORY, "no room")
        await gateway.events.write(build.failed(1, problem).value, session_id=name)
        with pytest.raises(openai.APIError, match="no room") as caught:
            await anext(stream)
    assert first.choices[0].delta.content == "He"
    assert (caught.value.code, caught.value.type) == ("out_of_memory", "server_error")


async def break_out(client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> None:
    """Read one chunk and leave the loop and the block."""
    call = client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, extra_body=dict(body)
    )
    async with await call as stream:
        async for _ in stream:
            break


async def close_the_client(client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> None:
    """Read one chunk, then close the client as a whole."""
    call = client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, extra_body=dict(body)
    )
    await anext(aiter(await call))
    await client.close()


async def time_out(client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> None:
    """Wait for a whole answer for too short a time."""
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=1.0).chat.completions.create(
            model=MODEL, messages=HI, extra_body=dict(body)
        )


async def reset(client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> None:
    """Cut the connection with a TCP reset, as a crashed or unplugged client looks."""
    url = client.base_url
    reader, out = await asyncio.open_connection(url.host, url.port)
    data = orjson.dumps({"messages": HI, "stream": True, **body})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    out.write(head.encode() + data)
    await reader.readuntil(b"data: ")
    linger = struct.pack("ii", 1, 0)
    out.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    out.transport.abort()


Leave = Callable[[openai.AsyncOpenAI, Mapping[str, Any]], Any]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("leave", [break_out, close_the_client, time_out, reset])
async def test_leaving_cancels_unless_in_background(
    gateway: ScriptedGateway, leave: Leave, background: bool
) -> None:
    """H1: every way to go. In the background the answer goes on, and can be read by its id."""
    gateway.sink.words, gateway.sink.pause_s = ["x "] * 12, 0.05
    gateway.sink.silent = leave is time_out
    async with gateway.client() as client:
        await leave(client, {"background": background})
    await until(lambda: gateway.log.num_subscriptions == 0)
    (sent,) = gateway.sink.submitted
    if not background:
        assert gateway.sink.cancelled == [sent["request_id"]]
        return
    if gateway.sink.silent:
        for value in script(sent, sent["_session"], gateway.sink.words, None):
            await gateway.events.write(value, session_id=sent["_session"])
    async with gateway.client() as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=HI, extra_body={"request_id": sent["request_id"]}
        )
    assert whole.choices[0].message.content == "x " * 12
    assert gateway.sink.cancelled == []


@pytest.mark.parametrize("streams", [(False, True), (True, False), (True, True)])
async def test_one_key_is_one_answer(gateway: ScriptedGateway, streams: tuple[bool, bool]) -> None:
    """Asked twice at the same time and once more after the end, with another body, in any form."""
    gateway.sink.words, gateway.sink.pause_s = list(WORDS), 0.05
    key = f"k{uuid4().hex}"

    async def ask(text: str, stream: bool) -> str:
        async with gateway.client(default_headers={"Idempotency-Key": key}) as client:
            answer: Any = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text}], stream=stream
            )
            if not stream:
                assert answer.id == key
                return str(answer.choices[0].message.content)
            return "".join([chunk.choices[0].delta.content async for chunk in answer])

    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(ask("hi", stream)) for stream in streams]
    assert [task.result() for task in both] == [TEXT, TEXT]
    gateway.sink.words = ["another"]
    assert await ask("something else", streams[0]) == TEXT
    assert gateway.sink.cancelled == []


async def test_a_key_is_found_whatever_session_its_first_call_was_in(
    gateway: ScriptedGateway,
) -> None:
    """A second call without the session waited for events that nobody would write."""
    key = f"k{uuid4().hex}"
    async with gateway.client() as client:
        for extra in ({"request_id": key, "session_id": "s1"}, {"request_id": key}):
            answered = await client.chat.completions.create(
                model=MODEL, messages=HI, extra_body=extra
            )
            assert answered.choices[0].message.content == TEXT


async def test_too_many_calls_at_once_are_rate_limited(gateway: ScriptedGateway) -> None:
    """The gateway holds `max_open` calls; one more is told to come again, and can once one ends."""
    gateway.sink.silent = True
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(gateway.client())
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        waiting = [
            tasks.create_task(client.chat.completions.create(model=MODEL, messages=HI))
            for _ in range(8)
        ]
        await until(lambda: len(gateway.sink.submitted) == 8)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HI)
        assert caught.value.code == "rate_limited"
        assert caught.value.response.headers["retry-after"] == "1"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await until(lambda: gateway.log.num_subscriptions == 0)
        gateway.sink.silent = False
        answered = await client.chat.completions.create(model=MODEL, messages=HI)
    assert answered.choices[0].message.content == TEXT


async def test_ids_that_no_header_could_hold_are_encoded(gateway: ScriptedGateway) -> None:
    """A client's id with a line break adds no header of its own."""
    name = "é 1\r\nset-cookie: x%"
    async with gateway.client() as client:
        answered = await client.chat.completions.create(
            model=MODEL, messages=HI, extra_body={"request_id": name}
        )
    assert answered.id == name
    assert answered._request_id == "%C3%A9%201%0D%0Aset-cookie:%20x%25"


async def test_sessions_are_deleted_over_http(gateway: ScriptedGateway) -> None:
    """202: the conversation goes once the record is read; any text may name a session."""
    async with gateway.client() as client:
        answered = await client.delete("/sessions/s%2F1", cast_to=object)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.delete(f"/sessions/{'x' * 513}", cast_to=object)
    assert answered == {"session_id": "s/1"}
    assert gateway.sink.deleted == [("default", "s/1")]
    assert caught.value.param == "session_id"


async def test_a_wrong_key_is_an_authentication_error(
    gateway: ScriptedGateway, tmp_path: Path
) -> None:
    """401 in OpenAI's form; the right key's tenant is the request's."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"key-a": "acme"}')
    settings = gateway.settings.model_copy(update={"api_keys_file": keys})
    async with scripted_gateway(settings, bounds=Bounds()) as locked:
        for key in ("key-b", "none"):
            async with locked.client(api_key=key) as client:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await client.models.list()
            assert caught.value.code == "unauthorized"
        async with locked.client(api_key="key-a") as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI)
        assert answer.choices[0].message.content == "".join(WORDS)
        assert locked.sink.tenants == ["acme"]
