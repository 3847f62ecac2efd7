"""An HTTP client that does not read its answer is cut off in the end: without a network."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from headrace.consumers.http_protocol import LINGER_S, HttpProtocol
from tests.unit.consumers.filling_transport import FillingTransport
from tests.virtual_time import run_virtually


async def _app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Never asked."""


@pytest.mark.parametrize("reads_on", [False, True])
def test_who_does_not_read_for_long_is_cut_off(reads_on: bool) -> None:
    """What is left of the connection is freed after LINGER_S; reading on in time spares it."""

    async def run() -> None:
        config = uvicorn.Config(_app, log_config=None)
        config.load()
        protocol, transport = HttpProtocol(config, ServerState(), {}), FillingTransport()
        protocol.connection_made(transport)
        protocol.pause_writing()
        await asyncio.sleep(LINGER_S - 1)
        assert not transport.aborted
        if reads_on:
            protocol.resume_writing()
        await asyncio.sleep(2)
        assert transport.aborted is not reads_on
        protocol.connection_lost(None)

    run_virtually(run())


async def test_requests_sent_ahead_without_end_are_not_held() -> None:
    """One connection took 180 MB a second: after each answer all that had come was parsed."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, log_config=None)
    config.load()
    protocol, transport = HttpProtocol(config, ServerState(), {}), FillingTransport()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\n\r\n" * 5_000)
    most = 0
    async with asyncio.timeout(10):
        while transport.unread.count(b"204 No") < 5_000:
            most = max(most, len(protocol.pipeline))
            await asyncio.sleep(0)
    assert 0 < most < 300
    protocol.connection_lost(None)


async def test_a_body_that_is_not_taken_yet_arrives_whole() -> None:
    """In pieces, with pauses while the application is behind."""
    taken = asyncio.Event()
    body = b""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        nonlocal body
        more = True
        while more:
            await asyncio.sleep(0)
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        taken.set()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, log_config=None)
    config.load()
    protocol, transport = HttpProtocol(config, ServerState(), {}), FillingTransport()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    sent = bytes(range(256)) * 2_000
    protocol.data_received(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent)
    async with asyncio.timeout(10):
        await taken.wait()
    assert body == sent
    protocol.connection_lost(None)
