"""Reading what HTTP clients send: JSON objects of a bounded size, and their trace context."""

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from headrace.consumers.errors_http import HttpError
from headrace.schemas.headers import trace_headers
from headrace.schemas.strict_json import decode_object

BODY_TIMEOUT_S = 30.0
"""For a whole body: a megabyte over a slow mobile line. Who sends a byte a minute is let go."""


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. Raises: HttpError 413; RequestError where it is none."""
    return decode_object(await read_body(request, max_bytes))


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body; empty where there is none.

    Raises: HttpError 408 (it took too long), 413, 415 (it is compressed: what it unpacks to has no
        bound).
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "send the body as it is, without Content-Encoding")
    too_large = HttpError(413, f"the body may have {max_bytes} bytes at most")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError as problem:
        raise HttpError(408, f"the body did not come within {BODY_TIMEOUT_S:g} s") from problem
    except ClientDisconnect as problem:
        raise HttpError(400, "the client left while it sent the body") from problem
    return bytes(body)


def trace_of(connection: HTTPConnection) -> list[tuple[str, bytes]]:
    """W3C trace context, to be handed on with the request."""
    return trace_headers([(name, value) for name, value in _raw(connection)])


def _raw(connection: HTTPConnection) -> list[tuple[str, bytes]]:
    return [(name.decode("latin-1").lower(), value) for name, value in connection.headers.raw]
