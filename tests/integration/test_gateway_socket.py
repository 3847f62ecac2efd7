"""The gateway's WebSocket over a real Kafka (contract §8, cases I)."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headrace.consumers.gateway import Bounds, build_app
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import RateLimitedError
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, ScriptedSink, answer
from tests.unit.consumers.running import running, serving

pytestmark = pytest.mark.integration

BOUNDS = Bounds(send_s=1.0)
WORDS = [f"w{number} " for number in range(20)]
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass
class Stack:
    """A running gateway and its scripted worker."""

    settings: Settings
    log: ResponseLog
    events: ResponseWriter
    sink: ScriptedSink
    url: str


@pytest.fixture
async def stack(kafka_bootstrap: str, topic_prefix: str) -> AsyncIterator[Stack]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    async with (
        ResponseWriter(settings) as events,
        ScriptedSink(events, WORDS) as sink,
        serving(settings, sink, bounds=BOUNDS) as (log, address),
    ):
        yield Stack(settings, log, events, sink, f"ws://{address}/v1/stream")


async def send(socket: ClientConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(10):
        found: dict[str, Any] = json.loads(await socket.recv())
    return found


async def read_events(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    """The next `count` frames, all of which are events."""
    found = [await receive(socket) for _ in range(count)]
    assert {frame["type"] for frame in found} == {"event"}
    return found


async def read_all(socket: ClientConnection, found: list[dict[str, Any]]) -> None:
    """Read into `found` until the socket closes, which raises."""
    while True:
        found.append(await receive(socket))


def numbers(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["event"]["sequence_number"] for frame in frames]


async def flush(socket: ClientConnection) -> dict[str, Any]:
    """A ping and what comes next: `pong`, if nothing else was on its way."""
    await send(socket, type="ping")
    return await receive(socket)


async def settled(check: Any) -> None:
    """Wait until `check()` holds."""
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


async def test_generate_is_accepted_and_followed(stack: Stack) -> None:
    """accepted, then every event once, then nothing; the socket serves the next turn."""
    async with connect(stack.url) as socket:
        for turn in range(2):
            await send(socket, type="generate", session_id="s1", messages=MESSAGES)
            accepted = await receive(socket)
            assert accepted["type"] == "accepted"
            assert accepted["session_id"] == "s1"
            frames = await read_events(socket, len(WORDS))
            assert numbers(frames) == list(range(len(WORDS)))
            assert {frame["event"]["id"] for frame in frames} == {accepted["request_id"]}
            assert await flush(socket) == {"type": "pong"}
            assert "context" not in stack.sink.submitted[turn]
    await settled(lambda: stack.log.num_subscriptions == 0)


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        (b"\x00", "invalid_value", None),
        ("{}", "invalid_value", "type"),
        ('{"type":"shout"}', "invalid_value", "type"),
        ('{"type":"generate"}', "invalid_value", "messages"),
        ('{"type":"generate","prompt":"x","temperature":9}', "invalid_value", "temperature"),
        ('{"type":"subscribe"}', "invalid_value", "type"),
        ('{"type":"subscribe","session_id":"s","cursor":"?"}', "invalid_value", "cursor"),
        ('{"type":"subscribe","session_id":"s","cursor":"c1.0.999999"}', "resume_gap", "cursor"),
        ('{"type":"subscribe","request_id":7}', "invalid_value", "request_id"),
        ('{"type":"cancel"}', "invalid_value", "request_id"),
        ('{"type":"ping","x":"\\ud800"}', "invalid_text", "x"),
    ],
)
async def test_a_bad_frame_is_an_error_and_the_socket_stays(
    stack: Stack, text: str | bytes, code: str, param: str | None
) -> None:
    """Each says which field; the next frame is served."""
    async with connect(stack.url) as socket:
        await socket.send(text)
        frame = await receive(socket)
        assert (frame["type"], frame["error"]["code"]) == ("error", code)
        assert frame["error"]["param"] == param
        assert await flush(socket) == {"type": "pong"}
    assert stack.sink.submitted == []


async def test_an_id_in_another_session_is_refused_where_that_is_known(stack: Stack) -> None:
    """Its events are in the first one; the answer there is not disturbed."""
    stack.sink.pause_s = 0.02
    async with connect(stack.url) as socket:
        for session in ("s1", "s2"):
            await send(socket, type="subscribe", session_id=session)
        await send(socket, type="generate", request_id="once", session_id="s1", messages=MESSAGES)
        assert (await receive(socket))["type"] == "accepted"
        found = await read_events(socket, 1)
        await send(socket, type="generate", request_id="once", session_id="s2", messages=MESSAGES)
        while (frame := await receive(socket))["type"] == "event":
            found.append(frame)
        assert (frame["error"]["code"], frame["error"]["param"]) == ("invalid_value", "session_id")
        assert "in session 's1'" in frame["error"]["message"]
        found += await read_events(socket, len(WORDS) - len(found))
        assert numbers(found) == list(range(len(WORDS)))
    assert len(stack.sink.submitted) == 1


async def test_two_sockets_and_two_gateways_all_see_a_session(stack: Stack) -> None:
    """I9, I11: two tabs, one of them at another gateway; each has everything once."""
    async with (
        serving(stack.settings, stack.sink, bounds=BOUNDS) as (_, other),
        connect(stack.url) as one,
        connect(stack.url) as two,
        connect(f"ws://{other}/v1/stream") as three,
    ):
        for socket in (one, two, three):
            await send(socket, type="subscribe", session_id="s1")
            await send(socket, type="subscribe", session_id="s1")
            assert await flush(socket) == {"type": "pong"}
        await send(one, type="generate", session_id="s1", messages=MESSAGES)
        assert (await receive(one))["type"] == "accepted"
        for socket in (one, two, three):
            assert numbers(await read_events(socket, len(WORDS))) == list(range(len(WORDS)))
            assert await flush(socket) == {"type": "pong"}


@pytest.mark.parametrize("way", ["cursor", "request", "session and number"])
async def test_a_dropped_socket_goes_on_where_it_was(stack: Stack, way: str) -> None:
    """I8: dropped in mid-answer, twice from the same place; the rest comes once, in order."""
    stack.sink.pause_s = 0.02
    async with connect(stack.url) as socket:
        await send(socket, type="generate", session_id="s1", request_id="r1", messages=MESSAGES)
        assert (await receive(socket))["type"] == "accepted"
        last = (await read_events(socket, 6))[-1]
    places: dict[str, dict[str, Any]] = {
        "cursor": {"session_id": "s1", "cursor": last["cursor"]},
        "request": {"request_id": "r1", "starting_after": 5},
        "session and number": {"session_id": "s1", "starting_after": 5},
    }
    async with connect(stack.url) as socket:
        await send(socket, type="subscribe", **places[way])
    async with connect(stack.url) as socket:
        await send(socket, type="subscribe", **places[way])
        assert numbers(await read_events(socket, 14)) == list(range(6, 20))
        assert await flush(socket) == {"type": "pong"}
    assert stack.sink.cancelled == []


async def test_one_socket_can_read_the_same_again(stack: Stack) -> None:
    """An explicit place is honoured on a socket that had those events before."""
    async with connect(stack.url) as socket:
        await send(socket, type="subscribe", session_id="s1")
        await send(socket, type="generate", session_id="s1", request_id="r1", messages=MESSAGES)
        assert (await receive(socket))["type"] == "accepted"
        frames = await read_events(socket, 20)
        for place in (
            {"session_id": "s1", "cursor": frames[9]["cursor"]},
            {"request_id": "r1", "cursor": frames[9]["cursor"]},
            {"request_id": "r1", "starting_after": 9},
            {"session_id": "s1", "request_id": "r1", "starting_after": 9},
        ):
            await send(socket, type="subscribe", **place)
            assert numbers(await read_events(socket, 10)) == list(range(10, 20))
            assert await flush(socket) == {"type": "pong"}
        await send(socket, type="subscribe", request_id="r1")
        assert numbers(await read_events(socket, 20)) == list(range(20))
        await send(socket, type="subscribe", request_id="r1", starting_after=19)
        assert await flush(socket) == {"type": "pong"}
        await send(socket, type="subscribe", request_id="r1", starting_after=999)
        late = await receive(socket)
        assert late["error"]["code"] == "resume_gap"
        assert late["request_id"] == "r1"


async def test_repeats_are_dropped_and_a_larger_attempt_is_passed_on(stack: Stack) -> None:
    """Contract §3 on the socket: duplicates, zombies, a restart, and what comes after the end."""
    old, new = answer("r1", "s1", WORDS[:5]), answer("r1", "s1", WORDS[:3], attempt=2)
    async with connect(stack.url) as socket:
        await send(socket, type="subscribe", session_id="s1")
        assert await flush(socket) == {"type": "pong"}
        for value in [*old[:3], old[1], *new[:2], old[3], new[1], new[2], old[4], new[2]]:
            await stack.events.write(value, session_id="s1")
        await stack.events.write(answer("r2", "s1", ["x"])[0], session_id="s1")
        frames = await read_events(socket, 7)
    seen = [(frame["event"]["attempt"], frame["event"]["sequence_number"]) for frame in frames]
    assert seen[:6] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert frames[6]["event"]["id"] == "r2"


async def test_cancel_ends_a_generation(stack: Stack) -> None:
    """The last event says `cancelled`."""
    stack.sink.pause_s = 0.05
    async with connect(stack.url) as socket:
        await send(socket, type="generate", session_id="s1", request_id="r1", messages=MESSAGES)
        await receive(socket)
        await send(socket, type="cancel", session_id="s1", request_id="r1")
        frame = await receive(socket)
        while frame["event"]["choices"][0]["finish_reason"] is None:
            frame = await receive(socket)
        assert frame["event"]["choices"][0]["finish_reason"] == "cancelled"


@pytest.mark.parametrize("background", [None, True, False])
async def test_a_closed_socket_cancels_only_foreground_generations(
    stack: Stack, background: bool | None
) -> None:
    """H1: by default the answer goes on, for a page that reloads."""
    stack.sink.pause_s = 0.05
    async with connect(stack.url) as socket:
        frame = {"type": "generate", "request_id": "r1", "messages": MESSAGES}
        await send(socket, **frame, background=background)
        await receive(socket)
    await settled(lambda: stack.log.num_subscriptions == 0)
    await settled(lambda: stack.sink.cancelled == (["r1"] if background is False else []))


async def test_a_client_that_never_reads_is_closed_and_others_go_on(stack: Stack) -> None:
    """I1, I2: 1013 for the slow one, no delay for the other, and its cursor still works."""
    big = ["x" * 50_000] * 400  # more than the buffers of kernel, uvicorn and gateway together
    async with connect(stack.url) as good, connect(stack.url, max_queue=1) as slow:
        for socket in (slow, good):
            await send(socket, type="subscribe", session_id="s1")
            assert await flush(socket) == {"type": "pong"}
        slow.transport.pause_reading()
        worst_s, loop = 0.0, asyncio.get_running_loop()
        for value in answer("r1", "s1", big):
            begin_s = loop.time()
            await stack.events.write(value, session_id="s1")
            await receive(good)
            worst_s = max(worst_s, loop.time() - begin_s)
        assert worst_s < 1.0
        await settled(lambda: stack.log.num_subscriptions == 1)
        slow.transport.resume_reading()
        late: list[dict[str, Any]] = []
        with pytest.raises(ConnectionClosed) as closed:
            await read_all(slow, late)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        await send(good, type="subscribe", session_id="s1", cursor=late[-1]["cursor"])
        assert numbers(await read_events(good, 1)) == [len(late)]


async def test_a_thousand_visits_leave_nothing_behind(stack: Stack) -> None:
    """I4: tasks and readers are back where they were, however a socket ended."""

    async def visit(number: int) -> None:
        async with connect(stack.url) as socket:
            await send(socket, type="subscribe", session_id=f"s{number}")
            if number % 3 == 0:
                await flush(socket)
            if number % 3 == 1:
                socket.transport.abort()

    await visit(0)
    await settled(lambda: stack.log.num_subscriptions == 0)
    before = len(asyncio.all_tasks())
    for start in range(0, 300, 20):
        async with asyncio.TaskGroup() as tasks:
            for number in range(start, start + 20):
                tasks.create_task(visit(number))
    await settled(lambda: stack.log.num_subscriptions == 0)
    await settled(lambda: len(asyncio.all_tasks()) <= before + 2)


async def test_the_gateway_restarts_in_mid_answer_and_the_cursor_still_works(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """The answer goes on without a gateway; the next one replays what was missed."""
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    async with ResponseWriter(settings) as events, ScriptedSink(events, WORDS) as sink:
        sink.pause_s = 0.03
        async with serving(settings, sink, bounds=BOUNDS) as (_, address):
            socket = await connect(f"ws://{address}/v1/stream")
            await send(socket, type="generate", session_id="s1", messages=MESSAGES)
            await receive(socket)
            cursor = (await read_events(socket, 5))[-1]["cursor"]
        with pytest.raises(ConnectionClosed):
            await read_all(socket, [])
        async with (
            serving(settings, sink, bounds=BOUNDS) as (_, address),
            connect(f"ws://{address}/v1/stream") as socket,
        ):
            await send(socket, type="subscribe", session_id="s1", cursor=cursor)
            assert numbers(await read_events(socket, 15)) == list(range(5, 20))
        assert sink.cancelled == []


async def test_sockets_need_a_key_and_our_own_page(stack: Stack, tmp_path: Path) -> None:
    """401 before the socket opens; a key as header or subprotocol; foreign pages are refused."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"key-a": "acme"}')
    settings = stack.settings.model_copy(update={"api_keys_file": keys})
    app = build_app(settings, stack.log, stack.sink)
    coded = base64.urlsafe_b64encode(b"key-a").decode().rstrip("=")
    async with running(app, settings) as address:
        url = f"ws://{address}/v1/stream"
        own, foreign = f"http://{address}", "http://evil.example"
        ways: list[dict[str, Any]] = [
            {},
            {"additional_headers": {"Authorization": "Bearer nope"}},
            {"additional_headers": {"Authorization": "Bearer key-a", "Origin": foreign}},
            {"subprotocols": ["headrace.v1", f"headrace.key.{coded}"], "origin": foreign},
        ]
        for way in ways:
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, **way)
            assert refused.value.response.status_code == 401
        with pytest.raises(InvalidStatus):
            await connect(f"{url}?api_key=key-a")
        async with connect(url, additional_headers={"Authorization": "Bearer key-a"}) as socket:
            await send(socket, type="generate", request_id="r1", messages=MESSAGES, tenant="x")
            assert (await receive(socket))["type"] == "accepted"
            await read_events(socket, len(WORDS))
        protocols: Any = ["headrace.v1", f"headrace.key.{coded}"]
        async with connect(url, subprotocols=protocols, origin=own) as socket:  # type: ignore[arg-type]
            assert socket.subprotocol == "headrace.v1"
            await send(socket, type="subscribe", request_id="r1")
            await read_events(socket, len(WORDS))
        assert stack.sink.tenants == ["acme"]
    async with connect(stack.url) as socket:  # another gateway, whose tenant is "default"
        await send(socket, type="subscribe", request_id="r1", session_id="r1")
        assert await flush(socket) == {"type": "pong"}


async def test_a_known_id_is_answered_whatever_session_it_was_in(stack: Stack) -> None:
    """A repeat that names no session was followed in a session of its own, for ever."""
    for value in answer("r1", "s1", WORDS[:3]):
        await stack.events.write(value, session_id="s1")
    stack.sink.silent = True  # a worker answers an id once
    async with connect(stack.url) as socket:
        await send(socket, type="generate", request_id="r1", messages=MESSAGES)
        assert (await receive(socket))["type"] == "accepted"
        assert numbers(await read_events(socket, 3)) == [0, 1, 2]


async def test_a_refused_generation_is_not_cancelled_with_its_socket(stack: Stack) -> None:
    """It ended the one of that id which another socket follows; and was kept without a bound."""
    stack.sink.refusals += [RateLimitedError("slow down", retry_after_s=1, limit="requests")]
    async with connect(stack.url) as socket:
        await send(socket, type="generate", request_id="r1", messages=MESSAGES, background=False)
        assert (await receive(socket))["error"]["code"] == "rate_limited"
    await settled(lambda: stack.log.num_subscriptions == 0)
    async with connect(stack.url) as socket:
        await flush(socket)
    assert stack.sink.cancelled == []
