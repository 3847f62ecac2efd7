"""The chat page: three static files, held in memory, under a strict Content-Security-Policy."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

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
    "Cache-Control": "no-cache",
}

_FILES = {
    "/": ("index.html", "text/html"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/connection.js": ("connection.js", "text/javascript"),
    "/page/transcript.js": ("transcript.js", "text/javascript"),
    "/page/style.css": ("style.css", "text/css"),
}


def page_routes() -> list[Route]:
    """`/` and what it loads. Reads the files once."""
    folder = files("headrace.consumers") / "page"
    return [
        Route(path, _serve((folder / name).read_bytes(), media_type))
        for path, (name, media_type) in _FILES.items()
    ]


def _serve(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return endpoint
