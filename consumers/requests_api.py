"""The endpoints of one request (contract §8): its events as SSE, and its cancel."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.bodies import read_object
from headrace.consumers.context import Gateway
from headrace.consumers.errors_http import HttpError, as_request_error
from headrace.consumers.generation import cancel
from headrace.consumers.request_feed import RequestFeed
from headrace.consumers.request_lookup import may_be_waiting
from headrace.consumers.sse import KEEP_ALIVE, begin_stream, sse_data
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError
from headrace.schemas.request import MAX_ID_CHARS

NO_CONTENT = 204
"""Tells a browser's EventSource that there is nothing more to reconnect for."""

FIRST_WAIT_S = 1.0
"""For the first event: longer than it takes to read the log, then we ask whether it was ever
sent.
"""


def request_routes(gateway: Gateway) -> list[Route]:
    """`GET /v1/requests/{id}/events` and `POST /v1/requests/{id}/cancel`."""

    async def events(request: Request) -> Response:
        return await _events(gateway, request)

    async def stop(request: Request) -> Response:
        tenant = gateway.tenant_of(request)
        request_id = name_in_path(request)
        body: dict[str, Any] = {}
        if request.headers.get("content-length", "0") != "0":
            body = await read_object(request, gateway.settings.max_request_bytes)
        session_id = body.get("session_id") or request.query_params.get("session_id") or request_id
        if not isinstance(session_id, str) or len(session_id) > MAX_ID_CHARS:
            raise RequestError(ErrorCode.INVALID_VALUE, "must be a string", "session_id")
        await cancel(gateway, request_id, session_id, tenant=tenant)
        return JSONResponse({"request_id": request_id, "session_id": session_id}, 202)

    return [
        Route("/v1/requests/{id:path}/events", events),
        Route("/v1/requests/{id:path}/cancel", stop, methods=["POST"]),
    ]


def name_in_path(request: Request) -> str:
    """The request id of the path. Raises: RequestError."""
    name = str(request.path_params["id"])
    if not 0 < len(name) <= MAX_ID_CHARS:
        raise RequestError(ErrorCode.INVALID_VALUE, "no usable id", "request_id")
    return name


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > 18 or int(text) < -1:
        raise RequestError(ErrorCode.INVALID_VALUE, "must be an integer of at least -1", name)
    return int(text)


async def _events(gateway: Gateway, request: Request) -> Response:
    tenant = gateway.tenant_of(request)
    cursor = request.query_params.get("cursor") or request.headers.get("last-event-id")
    feed = RequestFeed(
        gateway.log,
        tenant=tenant,
        request_id=name_in_path(request),
        session_id=request.query_params.get("session_id") or None,
        starting_after=None if cursor else _number(request, "starting_after"),
        cursor=cursor,
    )
    stream = await begin_stream(
        request,
        _pieces(gateway, feed),
        on_error=_last_words,
        send_timeout_s=gateway.bounds.send_s,
    )
    return stream or Response(status_code=NO_CONTENT)


def _last_words(problem: HeadraceError) -> bytes:
    return b"event: error\n" + sse_data({"error": as_request_error(problem).body()})


async def _pieces(gateway: Gateway, feed: RequestFeed) -> AsyncGenerator[bytes, None]:
    async with feed:
        found = await feed.next(FIRST_WAIT_S)
        if found is None and feed.is_unknown:
            await _check_sent(gateway, feed)
        if found is None and not feed.finished:
            yield KEEP_ALIVE  # the client learns that it is connected
        while True:
            if found is not None:
                gateway.metrics.events_sent.labels("sse").inc()
                yield sse_data(found[0].event, event_id=found[0].cursor)
            if feed.finished:
                return
            found = await feed.next(gateway.bounds.heartbeat_s)
            if found is None and not feed.finished:
                yield KEEP_ALIVE


async def _check_sent(gateway: Gateway, feed: RequestFeed) -> None:
    wanted = feed.wanted
    if not await may_be_waiting(
        gateway.settings,
        tenant=wanted.tenant,
        request_id=wanted.request_id or "",
        session_id=wanted.session_id,
    ):
        raise HttpError(404, "there is no such request", "request_id")
