"""What every HTTP answer gets, whoever makes it: a place in the counts, and the name of its call.

Owns the headers of ours. A call that produces or reads a request is named like that request, so
that a client that was cut off can read on; any other has a fresh name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.consumers.gateway_metrics import GatewayMetrics, route_of
from headrace.schemas.request_id import new_request_id

REQUEST_ID = "x-request-id"
"""OpenAI's clients show it as `_request_id`."""

IGNORED_FIELDS = "headrace-ignored-fields"
"""Names of the body's fields that change nothing here."""

MAX_IGNORED = 20
"""Names that are told: the rest would only fill the header."""

_NAME = re.compile("[A-Za-z0-9_.-]{1,64}")
_VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def name_call(request: Request, request_id: str, *, ignored: Sequence[str] = ()) -> None:
    """Have the answer to `request` name the request that it is about, and the `ignored` fields.

    An id that holds other than visible ASCII, or a percent sign, is percent-encoded.
    """
    named = {REQUEST_ID: quote(request_id, safe=_VISIBLE)}
    told = [name for name in ignored if _NAME.fullmatch(name)][:MAX_IGNORED]
    if told:
        named[IGNORED_FIELDS] = ", ".join(told)
    request.scope["headrace.headers"] = named


def tell_later(request: Request, headers: Callable[[], Mapping[str, str]]) -> None:
    """Have the answer to `request` carry `headers()`, as they are when it begins."""
    request.scope["headrace.late_headers"] = headers


class HttpCalls:
    """Middleware: counts HTTP answers by route and status, and sets the headers of this module."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def finishing(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = route_of(scope["path"])
                self._metrics.http_requests.labels(route, str(message["status"])).inc()
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers.update(scope.get("headrace.headers") or {REQUEST_ID: new_request_id()})
                headers.update(scope.get("headrace.late_headers", dict)())
            await send(message)

        await self._app(scope, receive, finishing)
        return None
