"""The HTTP and WebSocket gateway (contract §8) as one ASGI application.

Wires the parts together and does nothing else. The caller starts and stops the log, the sink and
the watch of the lag.
"""

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from headrace.consumers import api_operations as operations
from headrace.consumers.admission import LIMIT_HEADERS, Admission
from headrace.consumers.api_keys import ApiKeys, load_key_table
from headrace.consumers.auth import SUBPROTOCOL, bearer, check_bind, key_of_subprotocols
from headrace.consumers.bodies import trace_of
from headrace.consumers.context import Bounds, Gateway
from headrace.consumers.errors_http import (
    error_response,
    handle_crash,
    handle_error,
    handle_http_exception,
)
from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.consumers.http_calls import IGNORED_FIELDS, REQUEST_ID, HttpCalls
from headrace.consumers.lag_watch import LagWatch
from headrace.consumers.open_calls import OpenCalls
from headrace.consumers.openai_api import openai_routes
from headrace.consumers.openapi import ApiRoute, DocumentedApp
from headrace.consumers.page_files import page_routes
from headrace.consumers.rate_limits import Limits
from headrace.consumers.request_sink import RequestSink
from headrace.consumers.requests_api import request_routes
from headrace.consumers.response_log import ResponseLog
from headrace.consumers.socket_protocol import KEY_REVOKED, WIRE, SocketProtocol
from headrace.consumers.websocket import SocketSession
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings

__all__ = ["Bounds", "build_app", "check_bind"]


def build_app(
    settings: Settings,
    log: ResponseLog,
    requests: RequestSink,
    *,
    registry: CollectorRegistry | None = None,
    bounds: Bounds | None = None,
    lag: LagWatch | None = None,
) -> DocumentedApp:
    """The application; `/metrics` shows `registry` (a new one by default), with whatever others put
    in, and the `lag`.

    Its `state.gateway` is what other servers in this process share (gRPC).
    Raises: SettingsError for a bad keys file.
    """
    metrics = GatewayMetrics(registry or CollectorRegistry())
    metrics.watch_log(lambda: log.num_subscriptions, lambda: log.num_broken_events)
    metrics.watch_past(lambda: log.num_readers_of_the_past, lambda: log.recent_seconds)
    if lag is not None:
        metrics.watch_lag(lag)
        log.show(lag.on_event)
    bounds = bounds or Bounds()
    default_limits = Limits(settings.rate_limit_requests, settings.rate_limit_tokens)
    keys = ApiKeys(load_key_table(settings.api_keys_file), limits=default_limits)
    admission = Admission(
        keys.limits_of,
        metrics,
        calls=_bounded("generations", bounds.max_open, keys),
        sockets=_bounded("WebSockets", bounds.max_sockets, keys),
    )
    log.show(admission.see)
    gateway = Gateway(
        settings=settings,
        log=log,
        sink=requests,
        keys=keys,
        metrics=metrics,
        bounds=bounds,
        admission=admission,
    )
    routes: list[BaseRoute] = [
        *openai_routes(gateway),
        *request_routes(gateway),
        *_health_routes(gateway),
        *page_routes(),
        WebSocketRoute("/v1/stream", _socket_endpoint(gateway)),
    ]
    app = DocumentedApp(
        routes=routes,
        middleware=[Middleware(HttpCalls, metrics=metrics), *_cross_origin(settings)],
        exception_handlers={
            HeadraceError: handle_error,
            HTTPException: handle_http_exception,
            Exception: handle_crash,
        },
    )
    app.state.gateway = gateway
    return app


def _bounded(what: str, max_open: int, keys: ApiKeys) -> OpenCalls:
    """One tenant of several may have half."""
    share = max_open if keys.keyless else max(1, max_open // 2)
    return OpenCalls(what, max_open=max_open, max_per_tenant=share)


def _cross_origin(settings: Settings) -> list[Middleware]:
    """Answers browsers' questions of whether a page of another site may call; for those named."""
    if not settings.origins:
        return []
    told = [REQUEST_ID, IGNORED_FIELDS, "retry-after", *LIMIT_HEADERS]
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=sorted(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=told,
        )
    ]


def _health_routes(gateway: Gateway) -> list[ApiRoute]:
    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        ready = gateway.log.ready
        return JSONResponse(
            {"status": "ready" if ready else "the response log is not read"}, 200 if ready else 503
        )

    async def metrics(_request: Request) -> Response:
        text = generate_latest(gateway.metrics.registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [
        ApiRoute(operations.HEALTH, healthz),
        ApiRoute(operations.READINESS, readyz),
        ApiRoute(operations.METRICS, metrics),
    ]


def _socket_endpoint(gateway: Gateway) -> Callable[[WebSocket], Awaitable[None]]:
    async def endpoint(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", [])
        sockets = gateway.admission.sockets
        try:
            gateway.check_page(socket)
            key = _socket_key(gateway, socket, offered)
            tenant = gateway.keys.tenant_of(key)
            gateway.log.check_running()
            with gateway.admission.counted():
                sockets.take(tenant)
        except HeadraceError as problem:
            await socket.send_denial_response(error_response(problem))
            return
        try:
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        except BaseException:
            sockets.give_back(tenant)
            raise
        wire: SocketProtocol = socket.scope["extensions"][WIRE]
        session = SocketSession(wire, trace_of(socket), gateway, tenant)

        async def run() -> None:
            try:
                with gateway.keys.watched(key, tenant, lambda: wire.let_go(KEY_REVOKED)):
                    await session.run()
            finally:
                sockets.give_back(tenant)

        wire.session = run

    return endpoint


def _socket_key(gateway: Gateway, socket: WebSocket, offered: list[str]) -> str | None:
    key = key_of_subprotocols(offered)
    if key is None and gateway.settings.query_api_key == "on":
        key = socket.query_params.get("api_key")
    return key or bearer(socket.headers.get("authorization"))
