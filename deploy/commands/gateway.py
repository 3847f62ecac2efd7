"""`headrace gateway`: the HTTP server process around the gateway's app.

Owns the socket, the signals and the order of start and stop. Knows nothing of routes.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import structlog
import typer
import uvicorn

from headrace.consumers.context import Gateway
from headrace.consumers.gateway import build_app, check_bind
from headrace.consumers.grpc_server import GrpcServer
from headrace.consumers.keys_watch import KeysWatch
from headrace.consumers.lag_watch import LagWatch
from headrace.consumers.response_log import ResponseLog
from headrace.consumers.server import build_server
from headrace.consumers.tls import load_tls
from headrace.deploy.commands.options import (
    GATEWAY_FLAGS,
    examples,
    with_settings,
)
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import until_first_done

SOCKET_BACKLOG = 2048

YOUNG_OBJECTS = 50_000
"""Before a collection of the youngest (700 by default): more than 500 events and their tasks, which
would be taken for lasting ones otherwise, a reason for full collections.
"""

_log = structlog.get_logger(__name__)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace gateway",
        "headrace gateway --http-port 80 --http-host 0.0.0.0 --api-keys-file keys.json",
        "headrace gateway --http-port 443 --tls-cert-file chain.pem --tls-key-file key.pem",
    )
)
@with_settings(*GATEWAY_FLAGS)
def gateway(settings: Settings) -> int:
    """Serve the OpenAI-compatible API, WebSockets and the chat page.

    SIGTERM stops it; readers of replies under way go on elsewhere.
    """
    check_bind(settings)
    with listening(settings.http_host, settings.http_port) as listener:
        asyncio.run(serve(settings, listener))
    return 0


async def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; a second signal does not wait for open connections.

    Raises: UnavailableError when Kafka does not answer at the start.
    """
    tls = load_tls(settings)
    lag = LagWatch(settings)
    log = ResponseLog(settings)
    requests = RequestProducer(settings, source="headrace/gateway")
    app = build_app(settings, log, requests, lag=lag)
    config = build_server(app, settings, tls=tls, access_log=settings.log_level == "debug").config
    server = _Server(config)

    def on_signal() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    async with AsyncExitStack() as stack:
        parts: list[Any] = [requests, log, lag, *_watches(settings, app.state.gateway)]
        if tls is not None:
            parts.append(tls)
        for part in parts:
            stack.push_async_callback(part.stop)

        async def run_parts() -> None:
            """Until it is cancelled; before they run, every way in says try again."""
            for part in parts:
                await part.start()
            host, port = listener.getsockname()[:2]
            _log.info("gateway.listening", host=host, port=port)
            if settings.grpc_port is not None:
                grpc_server = GrpcServer(app.state.gateway)
                stack.push_async_callback(grpc_server.stop)
                port = await grpc_server.start(settings.http_host, settings.grpc_port, tls)
                _log.info("gateway.grpc_listening", host=host, port=port)
            _collect_less()
            await asyncio.Event().wait()

        await until_first_done(server.serve(sockets=[listener]), run_parts())
    _log.info("gateway.stopped")


def _collect_less() -> None:
    """Make full garbage collections, in which nothing is sent, short and rare (decision 014)."""
    gc.collect()
    gc.freeze()  # 250,000 objects that each would look through
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def _watches(settings: Settings, gateway: Gateway) -> list[KeysWatch]:
    """What keeps the keys as their file has them, where there is one."""
    path = settings.api_keys_file
    return [] if path is None else [KeysWatch(path, gateway.keys, gateway.metrics)]


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process by the signal it got."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `serve`."""
        yield


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; each connection that it takes sends small pieces at once.

    NOTE: asyncio does so by itself only for sockets that name their protocol, and these do not:
    each event waited for the ACK of the one before it, 40 ms on Linux.
    Raises: OSError in one clear line.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=SOCKET_BACKLOG)
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else str(problem)
        raise OSError(f"cannot listen on {host}:{port}: {reason}") from problem
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
