"""Errors as HTTP answers, in OpenAI's form, with the status codes of contract §8."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError, told_error

RETRY_AFTER_S = 1

_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.MODEL_NOT_FOUND: 404,
    ErrorCode.RESUME_GAP: 410,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.EXPIRED: 504,
    ErrorCode.NUMERICAL_ERROR: 500,
    ErrorCode.OUT_OF_MEMORY: 500,
    ErrorCode.INTERNAL_ERROR: 500,
}


class HttpError(RequestError):
    """An error whose status says more than its code: 404 for an unknown request, 413, 415."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(ErrorCode.INVALID_VALUE, message, param)
        self.status = status


def failed_error(event: Mapping[str, Any]) -> RequestError:
    """The error in a `failed` event."""
    return told_error(event["error"])


def as_request_error(problem: HeadraceError) -> RequestError:
    """`problem` as a client is told it: what is not about the request is `overloaded`."""
    if isinstance(problem, RequestError):
        return problem
    return RequestError(ErrorCode.OVERLOADED, str(problem))


def status_of(error: RequestError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, HttpError) else _STATUS.get(error.code, 400)


def error_response(problem: HeadraceError) -> JSONResponse:
    """`{"error": {type, code, message, param}}` with its status."""
    error = as_request_error(problem)
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = str(error.retry_after_s or RETRY_AFTER_S)
    return JSONResponse({"error": error.body()}, status, headers)


async def handle_http_exception(_request: Request, problem: Exception) -> Response:
    """Starlette's own refusals (no such path, no such method) in the same form."""
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    response = error_response(HttpError(status, HTTPStatus(status).phrase))
    response.headers.update(getattr(problem, "headers", None) or {})
    return response


async def handle_crash(_request: Request, _problem: Exception) -> Response:
    """A bug of ours, which Starlette then raises on to the server's log; its text stays there."""
    return error_response(RequestError(ErrorCode.INTERNAL_ERROR, "the gateway failed"))


async def handle_error(_request: Request, problem: Exception) -> Response:
    """Starlette's handler for everything that we raise on purpose."""
    if not isinstance(problem, HeadraceError):
        raise problem
    return error_response(problem)
