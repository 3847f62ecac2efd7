"""`headrace gateway`: the HTTP server process around the gateway's app.

Owns the socket, the signals and the order of start and stop. Knows nothing of routes.
"""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import structlog
import typer
import uvicorn
from headrace.consumers.gateway import build_app

from headrace.consumers.response_log import ResponseLog
from headrace.deploy.commands.options import HTTP, KAFKA, examples, with_settings
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings

SOCKET_BACKLOG = 2048

_log = structlog.get_logger(__name__)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace gateway",
        "headrace gateway --http-port 80 --http-host 0.0.0.0 --api-keys-file keys.json",
    )
)
@with_settings(*HTTP, *KAFKA, "group", "model", "drain_timeout_s", "max_request_bytes")
def gateway(settings: Settings) -> int:
    """Serve the OpenAI-compatible API, WebSockets and the chat page.

    SIGTERM stops it after the replies under way.
    """
    check_exposure(settings)
    with _listening(settings.http_host, settings.http_port) as listener:
        asyncio.run(serve(settings, listener))
    return 0


def check_exposure(settings: Settings) -> None:
    """Without API keys everybody who reaches the port is served, so it must be this machine's own.

    Raises: SettingsError.
    """
    if settings.api_keys_file is None and not _is_loopback(settings.http_host):
        raise SettingsError(
            f"--http-host {settings.http_host} is open to other machines: "
            "set HEADRACE_API_KEYS_FILE, or listen on 127.0.0.1"
        )


async def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; replies under way get the drain timeout.

    A second signal ends them at once.

    Raises: UnavailableError when Kafka does not answer at the start.
    """
    stop = asyncio.Event()
    log, requests = ResponseLog(settings), RequestProducer(settings, source="headrace/gateway")
    server = _server(settings, build_app(settings, log, requests))

    def on_signal() -> None:
        server.force_exit = stop.is_set()
        server.should_exit = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    async with AsyncExitStack() as stack:
        for part in (requests, log):
            stack.push_async_callback(part.stop)
            if not await _unless(stop, part.start()):
                return
        host, port = listener.getsockname()[:2]
        _log.info("gateway.listening", host=host, port=port)
        await server.serve(sockets=[listener])
    _log.info("gateway.stopped")


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process by the signal it got."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `serve`."""
        yield


def _server(settings: Settings, asgi_app: Any) -> _Server:
    config = uvicorn.Config(
        asgi_app,
        log_config=None,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=max(1, int(settings.drain_timeout_s)),
    )
    return _Server(config)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work`; False, with `work` cancelled, if `stop` is set before it ends."""
    doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
    if doing.cancelled():
        return False
    doing.result()
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=SOCKET_BACKLOG)
    except OSError as problem:
        raise OSError(f"cannot listen on {host}:{port}: {problem.strerror}") from problem
