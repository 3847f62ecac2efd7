"""`/metrics`, `/healthz` and `/readyz` of a worker, on the worker's own event loop.

On the loop on purpose: a loop that is blocked must not look alive.
"""

import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headrace.schemas.errors import SettingsError

Check = Callable[[], str | None]
"""None when all is well, else what is wrong."""

Endpoint = Callable[[Request], Awaitable[Response]]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the worker's


class HealthServer:
    """Listens on `port` (0 = any free one) from construction on; `port` is the real one then.

    Raises: SettingsError if the port is taken.
    """

    def __init__(
        self, registry: CollectorRegistry, *, port: int, alive: Check, ready: Check
    ) -> None:
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        app = Starlette(
            routes=[
                Route("/metrics", _metrics(registry)),
                Route("/healthz", _check(alive)),
                Route("/readyz", _check(ready)),
            ]
        )
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        self._server = _Server(config)

    async def serve(self) -> None:
        """Serve until `stop`. Cancel: closes the socket."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True


def _bind(port: int) -> socket.socket:
    try:
        return socket.create_server(
            ("", port)
        )  # all addresses: Prometheus scrapes from other hosts
    except OSError as problem:
        text = f"HEADRACE_METRICS_PORT: cannot listen on port {port}: {problem.strerror}"
        raise SettingsError(text) from problem


def _metrics(registry: CollectorRegistry) -> Endpoint:
    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return metrics


def _check(check: Check) -> Endpoint:
    async def answer(_: Request) -> Response:
        problem = check()
        return PlainTextResponse(problem or "ok", status_code=503 if problem else 200)

    return answer
