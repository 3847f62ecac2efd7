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
