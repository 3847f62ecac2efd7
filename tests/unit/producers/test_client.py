"""The client against a gateway that misbehaves by script: what it says again, when it gives up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from headrace.producers import client_dialer
from headrace.producers.client import Client, OutOfTouchError, RequestError
from headrace.schemas.errors import ErrorCode, SettingsError
from tests.unit.consumers.doubles import answer

Visit = Callable[["Visitor"], Awaitable[None]]
GENERATE, PING, SUBSCRIBE, CANCEL = "generate", "ping", "subscribe", "cancel"


class Visitor:
    """One connection of a client, at a scripted gateway."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next frame, which must be of this kind."""
        frame: dict[str, Any] = orjson.loads(await self.socket.recv())
        assert frame["type"] == kind
        return frame

    async def say(self, **frame: Any) -> None:
        await self.socket.send(orjson.dumps(frame).decode())

    async def answer(self, request_id: str, first: int = 0, last: int = 3) -> None:
        """Events of an answer of four words."""
        for number, value in enumerate(answer(request_id, request_id, list("abcd"))):
            if first <= number <= last:
                await self.say(type="event", cursor=f"c{number}", event=orjson.loads(value))

    async def leave(self, way: str) -> None:
        """End the connection, or make the client end it."""
        if way == "reset":
            self.socket.transport.abort()
        elif way == "garbage":
            await self.socket.send("<html>")
            await self.socket.wait_closed()
        else:
            await self.socket.close(int(way))

    async def refuse(self, code: ErrorCode, **names: str) -> None:
        await self.say(type="error", error=RequestError(code, code.value).body(), **names)


@asynccontextmanager
async def gateway(*visits: Visit) -> AsyncIterator[str]:
    """Plays one visit for each connection; the last is repeated. All must have been played."""
    waiting, problems = list(visits), list[BaseException]()

    async def play(socket: ServerConnection) -> None:
        visit = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        try:
            await visit(Visitor(socket))
        except ConnectionClosed:
            return
        except AssertionError as problem:
            problems.append(problem)
            raise

    async with serve(play, "127.0.0.1", 0, max_size=10_000) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    assert problems == []
    assert len(waiting) == 1


async def stay(visitor: Visitor) -> None:
    """Read on and say nothing."""
    while True:
        await visitor.socket.recv()


@pytest.mark.parametrize("end", ["1000", "1012", "1013", "reset", "garbage"])
async def test_a_request_that_may_be_lost_is_sent_again_under_its_id(end: str) -> None:
    """No `accepted`: once more, as it was; after it: only the events are asked for. However the
    socket ends.
    """
    frames: list[dict[str, Any]] = []

    async def leave_at_once(visitor: Visitor) -> None:
        frames.append(await visitor.hear(GENERATE))
        await visitor.leave(end)

    async def accept_and_leave(visitor: Visitor) -> None:
        frames.append(await visitor.hear(GENERATE))
        await visitor.say(type="accepted", request_id=frames[0]["request_id"], session_id="s")
        await visitor.leave(end)

    async def begin_and_leave(visitor: Visitor) -> None:
        frames.append(await visitor.hear(SUBSCRIBE))
        await visitor.answer(frames[0]["request_id"], last=1)
        await visitor.leave(end)

    async def finish(visitor: Visitor) -> None:
        frames.append(await visitor.hear(SUBSCRIBE))
        await visitor.answer(frames[0]["request_id"], first=2)
        await stay(visitor)

    async with (
        gateway(leave_at_once, accept_and_leave, begin_and_leave, finish) as url,
        Client(url) as client,
    ):
        whole = await client.generate("hi", seed=3).whole()
    assert whole.text == "abcd"
    assert frames[0] == frames[1]
    assert (frames[0]["seed"], frames[0]["background"]) == (3, True)
    name = {"request_id": frames[0]["request_id"], "session_id": frames[0]["request_id"]}
    assert frames[2] == {"type": "subscribe", **name}
    assert frames[3] == {"type": "subscribe", **name, "cursor": "c1"}


async def test_an_overloaded_gateway_is_asked_again() -> None:
    """On the same socket, after a pause; other refusals end the answer."""

    async def refuse_twice(visitor: Visitor) -> None:
        for code in (ErrorCode.OVERLOADED, ErrorCode.OVERLOADED):
            name = (await visitor.hear(GENERATE))["request_id"]
            await visitor.refuse(code, request_id=name)
        await visitor.hear(GENERATE)
        await visitor.answer(name)
        second = (await visitor.hear(GENERATE))["request_id"]
        await visitor.refuse(ErrorCode.RATE_LIMITED, request_id=second)
        await stay(visitor)

    async with gateway(refuse_twice) as url, Client(url) as client:
        assert (await client.generate("hi").whole()).text == "abcd"
        with pytest.raises(RequestError) as refused:
            await client.generate("hi").whole()
    assert refused.value.code is ErrorCode.RATE_LIMITED


@pytest.mark.parametrize(
    "garbage",
    [
        {"usage": "x"},
        {"usage": {"prompt_tokens_details": 7}},
        {"timings": [1]},
        {"choices": []},
        {"sequence_number": None},
    ],
)
async def test_an_event_that_cannot_be_read_ends_its_own_answer_only(
    garbage: dict[str, Any],
) -> None:
    """And frames of no known shape end none."""

    async def play(visitor: Visitor) -> None:
        broken = (await visitor.hear(GENERATE))["request_id"]
        whole = (await visitor.hear(GENERATE))["request_id"]
        for text in ("[]", "{}", '{"type":"event"}', '{"type":"accepted"}', '{"event":1}'):
            await visitor.socket.send(text)
        *_, last = answer(broken, broken, list("abcd"))
        await visitor.answer(broken, last=2)
        await visitor.say(type="event", cursor="c3", event=orjson.loads(last) | garbage)
        await visitor.answer(whole)
        await stay(visitor)

    async with gateway(play) as url, Client(url) as client:
        first, second = client.generate("hi"), client.generate("hi")
        reading = asyncio.create_task(first.whole())
        await asyncio.sleep(0)
        assert (await second.whole()).text == "abcd"
        with pytest.raises(RequestError, match="cannot be read") as ended:
            await reading
    assert ended.value.code is ErrorCode.INTERNAL_ERROR


async def test_an_error_without_a_name_is_the_oldest_requests() -> None:
    """A frame that could not be read has no name; requests are answered in order."""

    async def misread(visitor: Visitor) -> None:
        names = [(await visitor.hear(GENERATE))["request_id"] for _ in range(2)]
        await visitor.refuse(ErrorCode.INVALID_TEXT)
        await visitor.answer(names[1])
        await stay(visitor)

    async with gateway(misread) as url, Client(url) as client:
        first = asyncio.ensure_future(client.generate("hi").whole())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(client.generate("hi").whole())
        with pytest.raises(RequestError) as refused:
            await first
        assert (await second).text == "abcd"
    assert refused.value.code is ErrorCode.INVALID_TEXT


async def test_a_request_that_is_too_large_is_not_sent_for_ever() -> None:
    """The gateway closes with 1009: the largest is refused, the others go on."""

    async def take(visitor: Visitor) -> None:
        while True:
            frame = await visitor.hear(GENERATE)
            if len(frame["messages"][0]["content"]) < 100:
                await asyncio.sleep(0.05)
                await visitor.answer(frame["request_id"])

    async with gateway(take) as url, Client(url) as client:
        small = asyncio.ensure_future(client.generate("hi").whole())
        with pytest.raises(RequestError, match="as large as this"):
            await client.generate("x" * 20_000).whole()
        assert (await small).text == "abcd"


async def test_a_cancel_is_said_until_it_is_confirmed() -> None:
    """Again on the next socket; a `pong` behind it says that the gateway has done it."""
    heard: list[dict[str, Any]] = []

    async def leave_at_once(visitor: Visitor) -> None:
        heard.append(await visitor.hear(CANCEL))

    async def fail_once(visitor: Visitor) -> None:
        for overloaded in (True, False):
            heard.append(await visitor.hear(CANCEL))
            await visitor.hear(PING)
            if overloaded:
                await visitor.refuse(ErrorCode.OVERLOADED, request_id="r1", session_id="s1")
            await visitor.say(type="pong")
        await stay(visitor)

    async with gateway(leave_at_once, fail_once) as url, Client(url) as client:
        await client.cancel("r1", session_id="s1")
    assert heard == [{"type": "cancel", "request_id": "r1", "session_id": "s1"}] * 3


async def test_leaving_the_client_waits_for_its_cancels() -> None:
    """They reach the gateway although the application is gone."""
    heard: list[str] = []

    async def begin(visitor: Visitor) -> None:
        name = (await visitor.hear(GENERATE))["request_id"]
        await visitor.answer(name, last=0)
        heard.append((await visitor.hear(CANCEL))["request_id"])
        await visitor.hear(PING)
        await visitor.say(type="pong")
        await stay(visitor)

    async with gateway(begin) as url:
        async with Client(url) as client:
            reading = client.generate("hi")
            async for _ in reading:
                break
        assert heard == [reading.request_id]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_gateway_that_refuses_us_is_not_asked_again(status: int) -> None:
    """Its words are the error's, where it has some."""

    def refuse(socket: ServerConnection, _request: Request) -> Response:
        body = RequestError(ErrorCode.UNAUTHORIZED, "no API key was given").body()
        text = orjson.dumps({"error": body}).decode() if status == 401 else "<html>"
        return socket.respond(status, text)

    async def never(_socket: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}") as client:
            match = "no API key was given" if status == 401 else f"status {status}"
            with pytest.raises(RequestError, match=match) as refused:
                await client.complete("hi")
    assert refused.value.code is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("fields", [{"text": "\ud800"}, {"new_field": object()}, {"n": 2**70}])
async def test_what_no_frame_can_hold_is_refused_at_once(fields: dict[str, Any]) -> None:
    """Halves of characters, what is no JSON; also in fields that nobody here knows."""
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(RequestError):
            client.generate(**({"text": "hi"} | fields))


async def test_a_client_that_is_closed_says_so() -> None:
    """Nothing would ever close what it opened now."""
    async with Client("http://127.0.0.1:1") as client:
        late = client.generate("hi")
    with pytest.raises(RuntimeError, match="is closed"):
        await late.whole()


async def test_a_silent_gateway_is_left_in_time() -> None:
    """The error says where to go on; the same request is not read twice at once."""
    async with gateway(stay) as url, Client(url, max_wait_s=0.2) as client:
        reading = client.generate("hi", request_id="r1")
        async with reading:
            with pytest.raises(RequestError, match="reads this request already"):
                await client.resume("r1").whole()
            with pytest.raises(OutOfTouchError, match="from its start"):
                await reading.whole()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:1", "ws://a:1/v1/stream"),
        ("https://a/", "wss://a/v1/stream"),
        ("http://a:1/v1", "ws://a:1/v1/stream"),
        ("wss://a/under/v1/stream", "wss://a/under/v1/stream"),
        ("http://[::1]:8080", "ws://[::1]:8080/v1/stream"),
    ],
)
def test_addresses_in_every_spelling(url: str, expected: str) -> None:
    """As they are pasted from an OpenAI client's settings, or from a WebSocket's."""
    assert client_dialer.Addresses.of([url], None, None).urls == (expected,)


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://a", "http://", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    """At once, and not at the first request."""
    with pytest.raises(SettingsError):
        Client(url)
