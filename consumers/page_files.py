"""The chat page: static files, held in memory, under a strict Content-Security-Policy."""

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for each time, sent only if it has changed
}

_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def page_routes() -> list[Route]:
    """`/` and, under `/page/`, what it loads. Reads the files once."""
    routes = []
    for file in (files("headrace.consumers") / "page").iterdir():
        media_type = _MEDIA_TYPES.get(PurePath(file.name).suffix)
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            routes.append(Route(path, _serve(file.read_bytes(), media_type)))
    return routes


def _serve(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = _HEADERS | {"ETag": tag}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return endpoint
