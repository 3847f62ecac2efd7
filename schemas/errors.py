"""The errors that Headrace raises on purpose, and the codes that a reader sees.

HeadraceError
├── SettingsError            a HEADRACE_* variable or flag is unknown or bad (exit code 2)
├── RequestError             a request is refused: it becomes a `failed` event
│   ├── UndecodableError     the record holds no request: it goes to the dead-letter topic too
│   └── RateLimitedError     a tenant has used up what it may; it says when to come again
└── UnavailableError         Kafka or Redis gave no answer in time; trying again may help
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """`error.code` of contract §5."""

    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    INVALID_TEXT = "invalid_text"
    SESSION_KEY_MISMATCH = "session_key_mismatch"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    SESSION_OUT_OF_SYNC = "session_out_of_sync"
    EXPIRED = "expired"
    OVERLOADED = "overloaded"
    NUMERICAL_ERROR = "numerical_error"
    OUT_OF_MEMORY = "out_of_memory"
    INTERNAL_ERROR = "internal_error"
    UNAUTHORIZED = "unauthorized"
    RATE_LIMITED = "rate_limited"
    RESUME_GAP = "resume_gap"


_SERVER_SIDE = {
    ErrorCode.OVERLOADED,
    ErrorCode.NUMERICAL_ERROR,
    ErrorCode.OUT_OF_MEMORY,
    ErrorCode.INTERNAL_ERROR,
}


class HeadraceError(Exception):
    """Root of every error that this package raises on purpose."""

    retriable = False
    """Whether the same call may succeed if it is tried again unchanged."""


class SettingsError(HeadraceError):
    """A setting is unknown or has a bad value; the text says which and what to do."""


class RequestError(HeadraceError):
    """A request is refused; it ends with a `failed` event and its neighbours are not touched."""

    retry_after_s: float | None = None
    """After this the same request may be taken; None where waiting does not help, or is unknown."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(code, message, param)
        self.code, self.message, self.param = code, message, param

    def __str__(self) -> str:
        return self.message if self.param is None else f"{self.param}: {self.message}"

    def body(self) -> dict[str, Any]:
        """The `error` object of a `failed` event and of an HTTP error, in OpenAI's form."""
        kind = "server_error" if self.code in _SERVER_SIDE else "invalid_request_error"
        told: dict[str, Any] = {
            "type": kind,
            "code": self.code.value,
            "message": _writable(self.message),
            "param": None if self.param is None else _writable(self.param),
        }
        if self.retry_after_s is not None:  # a WebSocket's frame has no header for it
            told["retry_after_s"] = self.retry_after_s
        return told


def told_error(body: Mapping[str, Any]) -> RequestError:
    """The error in an `error` object that was received; an unknown code counts as internal."""
    try:
        code = ErrorCode(str(body.get("code")))
    except ValueError:
        code = ErrorCode.INTERNAL_ERROR
    error = RequestError(code, str(body.get("message") or code.value), body.get("param"))
    wait_s = body.get("retry_after_s")
    if isinstance(wait_s, int | float):
        error.retry_after_s = wait_s
    return error


def _writable(text: str) -> str:
    """`text` as UTF-8 can hold it: a message may quote a file name or a stranger's bytes."""
    return text.encode("utf-8", "replace").decode("utf-8")


class UndecodableError(RequestError):
    """The record's bytes hold no request; `request_id` is the id that could still be read."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(ErrorCode.INVALID_JSON, message)
        self.args = (message, request_id)  # what pickle and copy call this class with
        self.request_id = request_id


class RateLimitedError(RequestError):
    """A tenant has used up what it may have for now; trying again after `retry_after_s` helps.

    `limit` names which of its limits.
    """

    retriable = True
    retry_after_s: int

    def __init__(self, message: str, retry_after_s: int, limit: str) -> None:
        text = f"{message}; try again in {retry_after_s} s"
        super().__init__(ErrorCode.RATE_LIMITED, text)
        self.args = (message, retry_after_s, limit)  # what pickle and copy call this class with
        self.retry_after_s, self.limit = retry_after_s, limit


class UnavailableError(HeadraceError):
    """A store or broker gave no answer within the deadline, or said at once why it gives none."""

    retriable = True

    def __init__(self, what: str, timeout_s: float, reason: str | None = None) -> None:
        super().__init__(what, timeout_s, reason)
        self.what, self.timeout_s, self.reason = what, timeout_s, reason

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.what} {self.reason}"
        return f"{self.what} gave no answer within {self.timeout_s:g} s"
