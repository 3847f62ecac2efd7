"""The endpoints of requests (contract §8), events as SSE and cancel, and of sessions."""

from collections.abc import AsyncGenerator

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.consumers import api_operations as operations
from headrace.consumers.bodies import read_body
from headrace.consumers.context import Gateway
from headrace.consumers.cursor import parse_cursor
from headrace.consumers.errors_http import HttpError, as_request_error
from headrace.consumers.generation import cancel, forget
from headrace.consumers.http_calls import name_call
from headrace.consumers.log_event import LogEvent
from headrace.consumers.openapi import ApiRoute
from headrace.consumers.request_feed import RequestFeed
from headrace.consumers.sse import KEEP_ALIVE, begin_stream, sse_data
from headrace.consumers.submission import CancelCall, usable_id
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError
from headrace.schemas.reply import Seen
from headrace.schemas.request import MAX_ID_CHARS
from headrace.schemas.strict_json import decode_object
from headrace.schemas.wire import refusal

NO_CONTENT = 204
"""Tells a browser's EventSource that there is nothing more to reconnect for."""

FIRST_WAIT_S = 1.0
"""For the first event: longer than it takes to read the log, then we ask whether it was ever
sent.
"""


def request_routes(gateway: Gateway) -> list[ApiRoute]:
    """The events and the cancel of a request, and the end of a session."""

    async def request_events(request: Request) -> Response:
        return await _events(gateway, request)

    async def cancel_request(request: Request) -> Response:
        return await _cancel(gateway, request)

    async def delete_session(request: Request) -> Response:
        tenant = gateway.tenant_of(request)
        session_id = _id_in_path(request, "session_id")
        await forget(gateway, session_id, tenant=tenant)
        return JSONResponse({"session_id": session_id}, 202)

    return [
        ApiRoute(operations.EVENTS, request_events),
        ApiRoute(operations.CANCEL, cancel_request),
        ApiRoute(operations.DELETE, delete_session),
    ]


def _id_in_path(request: Request, name: str) -> str:
    return usable_id(str(request.path_params[name]), name)


async def _cancel(gateway: Gateway, request: Request) -> Response:
    tenant = gateway.tenant_of(request)
    request_id = _id_in_path(request, "request_id")
    name_call(request, request_id)
    data = await read_body(request, gateway.settings.max_request_bytes)
    names = decode_object(data) if data else {}
    names.setdefault("session_id", _session_in_query(request))
    try:
        call = CancelCall.model_validate(names)
    except ValidationError as problem:
        raise refusal(problem, names) from problem
    session_id = call.session_id or request_id
    await cancel(gateway, request_id, session_id, tenant=tenant)
    return JSONResponse({"request_id": request_id, "session_id": session_id}, 202)


def _cursor(request: Request) -> str | None:
    """The place to go on from: a browser that reconnects says a newer one than its URL."""
    places = (request.headers.get("last-event-id"), request.query_params.get("cursor"))
    given = [text for text in places if text]
    for text in given:
        parse_cursor(text)
    return given[0] if given else None


def _session_in_query(request: Request) -> str | None:
    found = request.query_params.get("session_id") or None
    if found is not None and len(found) > MAX_ID_CHARS:
        text = f"must have at most {MAX_ID_CHARS} characters"
        raise RequestError(ErrorCode.INVALID_VALUE, text, "session_id")
    return found


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > 18 or int(text) < -1:
        raise RequestError(ErrorCode.INVALID_VALUE, "must be an integer of at least -1", name)
    return int(text)


async def _events(gateway: Gateway, request: Request) -> Response:
    tenant = gateway.tenant_of(request)
    request_id = _id_in_path(request, "request_id")
    name_call(request, request_id)
    cursor = _cursor(request)
    feed = RequestFeed(
        gateway.log,
        tenant=tenant,
        request_id=request_id,
        session_id=_session_in_query(request),
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
        found = await first_event(gateway, feed)
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


async def first_event(gateway: Gateway, feed: RequestFeed) -> tuple[LogEvent, Seen] | None:
    """The first event of a feed; None for a request that waits for its worker.

    Raises: HttpError 404 for a request that was never sent; what `feed.next` raises.
    """
    found = await feed.next(FIRST_WAIT_S)
    if found is not None or not feed.is_unknown:
        return found
    wanted = feed.wanted
    if await gateway.log.may_be_waiting(wanted.tenant, wanted.request_id or ""):
        return None
    found = await feed.next(0.0)  # it may have been answered while we asked
    if found is None and feed.is_unknown:
        raise HttpError(404, "there is no such request", "request_id")
    return found
