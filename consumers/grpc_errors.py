"""Errors as gRPC status codes and trailing metadata.

The code follows from the HTTP status, so that both ways in refuse the same things alike.
"""

from urllib.parse import quote

import grpc

from headrace.consumers.errors_http import RETRY_AFTER_S, as_request_error, status_of
from headrace.consumers.subscription import SlowReaderError
from headrace.schemas.errors import HeadraceError

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    410: grpc.StatusCode.OUT_OF_RANGE,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
_RETRIED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)

_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What stands in metadata as it is; a field's name may hold anything that a client made up."""

Metadata = tuple[tuple[str, str], ...]


def code_of(problem: HeadraceError) -> grpc.StatusCode:
    """The status code of an error."""
    if isinstance(problem, SlowReaderError):
        return grpc.StatusCode.ABORTED
    return _CODES.get(status_of(as_request_error(problem)), grpc.StatusCode.INVALID_ARGUMENT)


def is_resumable(problem: HeadraceError) -> bool:
    """Whether the client is told to go on reading, so that its generation must not be cancelled."""
    return code_of(problem) in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)


def trailing_of(problem: HeadraceError, *, cursor: str | None = None) -> Metadata:
    """The contract's code, the field, when to try again, and where to go on."""
    error = as_request_error(problem)
    found = [("headrace-code", error.code.value)]
    if error.param is not None:
        found.append(("headrace-param", quote(error.param, safe=_PRINTABLE)))
    if code_of(problem) in _RETRIED:
        wait_s = error.retry_after_s or RETRY_AFTER_S
        found.append(("retry-after", str(wait_s)))
    if cursor is not None:
        found.append(("headrace-cursor", cursor))
    return tuple(found)
