"""Server-sent events: their bytes, and a response that ends when its client leaves or stops
reading.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tasks import until_first_done

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx would hold the stream back
}


def sse_data(body: Any, *, event_id: str | None = None) -> bytes:
    """One `data:` event; JSON has no line breaks, so one line is enough."""
    head = f"id: {event_id}\n".encode() if event_id else b""
    return head + b"data: " + orjson.dumps(body) + b"\n\n"


class EventStream(Response):
    """Sends `first`, then `pieces` as they come; the generator is closed in every case.

    An error that ends the pieces is sent as one more, made by `on_error`. A client that takes
    nothing for `send_timeout_s` has left. Make it with `begin_stream`, so that the generator has
    been started: one that was not runs no `finally`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        *,
        on_error: Callable[[HeadraceError], bytes],
        send_timeout_s: float,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._first, self._pieces, self._on_error = first, pieces, on_error
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_first_done(until_left(receive), self._write(send))
        finally:
            await self._pieces.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._send(send, self._first)
            try:
                async for piece in self._pieces:
                    await self._send(send, piece)
            except HeadraceError as problem:
                await self._send(send, self._on_error(problem))
            await self._send(send, b"", more=False)
        except (OSError, TimeoutError):
            return  # the client has left, or reads nothing: the same to us

    async def _send(self, send: Send, piece: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": piece, "more_body": more})


async def begin_stream(
    request: Request,
    pieces: AsyncGenerator[bytes, None],
    *,
    on_error: Callable[[HeadraceError], bytes],
    send_timeout_s: float,
) -> EventStream | None:
    """Wait for the first piece, so that an early error still has its own status.

    None where there is no piece, or the client left: the generator is closed then, as it is on
    errors.
    """
    first: list[bytes] = []

    async def begin() -> None:
        piece = await anext(pieces, None)
        first.extend([piece] if piece is not None else [])

    try:
        await until_first_done(until_left(request.receive), begin())
    except BaseException:
        await pieces.aclose()
        raise
    if not first:
        await pieces.aclose()
        return None
    return EventStream(first[0], pieces, on_error=on_error, send_timeout_s=send_timeout_s)


async def until_left(receive: Receive) -> None:
    """Return when the client of an HTTP request has left. Only after its body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
