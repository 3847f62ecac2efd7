"""What a client that does not read may hold, and how it is let go: without a network."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from headrace.consumers.http_protocol import LINGER_S
from headrace.consumers.server import PING_INTERVAL_S
from headrace.consumers.socket_frames import text_frame
from headrace.consumers.socket_protocol import (
    MAX_FRAGMENTS,
    WIRE,
    SocketProtocol,
    StalledError,
)
from tests.unit.consumers.filling_transport import FillingTransport
from tests.virtual_time import run_virtually

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"
CLOSE_1013 = b"\x88\x02\x03\xf5"


def connected(app: Any) -> tuple[SocketProtocol, FillingTransport]:
    """A socket whose client has asked for the upgrade."""
    config = uvicorn.Config(
        app,
        log_config=None,
        ws=SocketProtocol,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_INTERVAL_S,
    )
    config.load()
    protocol, transport = SocketProtocol(config, ServerState(), {}), FillingTransport()
    protocol.connection_made(transport)
    protocol.data_received(UPGRADE)
    return protocol, transport


async def opened() -> tuple[SocketProtocol, FillingTransport]:
    """A socket after its handshake, with a client that has read the answer and then stopped."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        scope["extensions"][WIRE].session = asyncio.Event().wait

    protocol, transport = connected(app)
    while not transport.unread:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    transport.unread = b""
    protocol.pause_writing()
    return protocol, transport


async def test_a_refused_handshake_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any stranger may cause it; the answer is the whole of what was to be said."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"no"})

    protocol, transport = connected(app)
    await asyncio.wait(set(protocol.tasks))
    assert transport.unread.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert transport.unread.endswith(b"no")
    assert [record.message for record in caplog.records] == []


async def test_a_handshake_that_is_left_open_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug of ours: the client is told 500."""

    async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...

    protocol, transport = connected(app)
    await asyncio.wait(set(protocol.tasks))
    assert transport.unread.startswith(b"HTTP/1.1 500")
    assert "without completing handshake" in caplog.text


async def gone(protocol: SocketProtocol) -> None:
    """The connection is over; its task, too."""
    protocol.connection_lost(None)
    for task in list(protocol.tasks):
        task.cancel()
        await asyncio.wait({task})


async def test_a_close_does_not_wait_for_room_and_is_sent_once() -> None:
    """I1: the close frame stands behind what was written, for when the client reads on."""
    protocol, transport = await opened()
    protocol.write(text_frame(b"{}"))
    protocol.let_go(1013)
    protocol.let_go(1013)
    protocol.write(text_frame(b"{}"))
    assert transport.unread == b"\x81\x02{}" + CLOSE_1013
    await gone(protocol)


def test_a_client_that_never_reads_on_is_cut_off() -> None:
    """Its buffer is freed after LINGER_S, not before."""

    async def run() -> None:
        protocol, transport = await opened()
        protocol.let_go(1013)
        await asyncio.sleep(LINGER_S - 1)
        assert not transport.aborted
        await asyncio.sleep(2)
        assert transport.aborted
        await gone(protocol)

    run_virtually(run())


def test_waiting_for_room_ends_without_progress_only() -> None:
    """A slow client that takes something is waited for; one that takes nothing is not."""

    async def run() -> None:
        protocol, transport = await opened()
        transport.unread = b"x" * 3000
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for later_s in (5, 15, 25):
            loop.call_at(
                began_s + later_s, lambda: setattr(transport, "unread", transport.unread[1000:])
            )
        with pytest.raises(StalledError):
            await protocol.until_writable(10)
        assert loop.time() - began_s == pytest.approx(40)
        await gone(protocol)

    run_virtually(run())


async def test_waiting_for_room_ends_with_the_connection() -> None:
    """A client that leaves is not waited for; nothing is raised."""
    protocol, _ = await opened()
    waiting = asyncio.create_task(protocol.until_writable(10))
    await asyncio.sleep(0)
    await gone(protocol)
    await waiting


async def test_pings_are_not_answered_into_a_full_buffer() -> None:
    """A client cannot fill our memory with pings whose answers it does not read."""
    protocol, transport = await opened()
    protocol.data_received(PING * 500)
    assert transport.unread == b""
    protocol.resume_writing()
    protocol.data_received(PING)
    assert transport.unread == b"\x8a\x00"
    await gone(protocol)


def test_a_ping_without_an_answer_is_1013_and_an_answered_one_is_not() -> None:
    """Whoever answers is never closed for being idle; whoever does not has stopped reading."""

    async def run() -> None:
        protocol, transport = await opened()
        for _ in range(20):
            while not transport.unread:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.5)
            assert transport.unread[:2] == b"\x89\x04"
            protocol.data_received(b"\x8a\x84\0\0\0\0" + transport.unread[2:])
            transport.unread = b""
        await asyncio.sleep(60)
        assert transport.unread[6:] == CLOSE_1013
        await gone(protocol)

    run_virtually(run())


async def test_a_stopping_server_does_not_wait_for_those_who_do_not_read() -> None:
    """1012, and the connection is cut while something is unread."""
    protocol, transport = await opened()
    protocol.shutdown()
    assert transport.unread == b"\x88\x02\x03\xf4"
    assert transport.aborted
    await gone(protocol)


async def test_a_flood_of_small_frames_lets_others_have_their_turn() -> None:
    """40,000 pings in one read kept every other client waiting for half a second."""
    protocol, transport = await opened()
    protocol.resume_writing()
    protocol.data_received(PING * 10_000)
    assert 0 < transport.unread.count(b"\x8a\x00") < 1_000
    async with asyncio.timeout(10):
        while transport.unread.count(b"\x8a\x00") < 10_000:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
    await gone(protocol)


async def test_frames_behind_one_that_is_not_taken_wait_in_order() -> None:
    """However they come in; those that a lost client left are dropped."""
    protocol, _ = await opened()
    texts = [b"%04d" % number for number in range(3_000)]
    data = b"".join(b"\x81\x84\0\0\0\0" + text for text in texts)
    protocol.data_received(data[:-5])
    protocol.data_received(data[-5:])
    assert protocol.queue.qsize() < 1_000
    assert [(await protocol.receive())["text"].encode() for _ in texts[:2_000]] == texts[:2_000]
    await gone(protocol)
    left = [protocol.queue.get_nowait()["type"] for _ in range(protocol.queue.qsize())]
    assert len(left) < 1_000
    assert left[-1] == "websocket.disconnect"


async def test_fragments_without_bytes_do_not_pile_up() -> None:
    """A message of them never grew too long, and was never freed."""
    protocol, _ = await opened()
    protocol.data_received(
        b"\x01\x81\0\0\0\0a" + b"\x00\x80\0\0\0\0" * 5_000 + b"\x00\x81\0\0\0\0b"
    )
    async with asyncio.timeout(10):
        while protocol.frames[-1:] != [b"b"]:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
    assert len(protocol.frames) <= MAX_FRAGMENTS + 1
    protocol.data_received(b"\x80\x81\0\0\0\0c")
    assert (await protocol.receive())["text"] == "abc"
    await gone(protocol)
