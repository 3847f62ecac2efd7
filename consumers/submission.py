"""A call of a client, made into the request record that is produced for it.

Owns ids and defaults that only a gateway sets (contract §2, §8). Sans I/O; the checks are those of
`headrace.schemas.request`, so what is accepted here is accepted by the worker.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request import MAX_ID_CHARS, GenerationRequest, Identifier, validate_request
from headrace.schemas.request_id import new_request_id
from headrace.schemas.wire import WireModel, refusal


class StreamOptions(WireModel):
    """`stream_options` of the OpenAI API."""

    include_usage: bool = False


class CallOptions(WireModel):
    """Said to the gateway, of no meaning to a worker."""

    background: bool = False
    n: int = Field(1, ge=1, le=1)
    stream_options: StreamOptions = StreamOptions()


class CancelCall(WireModel):
    """The body of a cancel over HTTP, which may be left out."""

    session_id: Identifier | None = None


_LOCAL_FIELDS = {"type", *CallOptions.model_fields}
_READ_FIELDS = (_LOCAL_FIELDS | set(GenerationRequest.model_fields)) - {"tenant"}


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid request, ready to be produced under `session_id` as its key.

    `may_exist`: the client chose the id, so that it may have been answered already.
    `background`: the generation goes on when its client leaves. `ignored`: names of fields that the
    client sent and nobody reads, as it wrote them.
    """

    body: dict[str, Any]
    request_id: str
    session_id: str
    may_exist: bool
    background: bool
    options: CallOptions
    ignored: tuple[str, ...] = ()

    @property
    def session_to_follow(self) -> str | None:
        """Of the answer. None: whatever it is, for the first record with an id counts, and that may
        have named another one.
        """
        return None if self.session_id == self.request_id else self.session_id


def prepare(
    body: dict[str, Any],
    *,
    tenant: str,
    idempotency_key: str | None = None,
    background: bool = False,
) -> Submission:
    """Check `body` and settle its names; `background` is the default of this way in.

    Without a `session_id` the request is a conversation of its own: its id is the session, and its
    context is `replace`. The body's `tenant` is never believed. Raises: RequestError.
    """
    given = {name: value for name, value in body.items() if value is not None}
    if idempotency_key and len(idempotency_key) > MAX_ID_CHARS:
        text = f"must have at most {MAX_ID_CHARS} characters"
        raise RequestError(ErrorCode.INVALID_VALUE, text, "Idempotency-Key")
    if idempotency_key and "request_id" not in given:
        given["request_id"] = idempotency_key
    request = validate_request(given)
    options = _options(given)
    request_id = request.request_id or new_request_id()
    session_id = request.session_id or request_id
    if request.session_id is None and request.context is None:
        given["context"] = "replace"
    produced = {name: value for name, value in given.items() if name not in _LOCAL_FIELDS}
    return Submission(
        body=produced | {"request_id": request_id, "session_id": session_id, "tenant": tenant},
        request_id=request_id,
        session_id=session_id,
        may_exist=request.request_id is not None,
        background=given.get("background", background),
        options=options,
        ignored=tuple(name for name in given if name not in _READ_FIELDS),
    )


def _options(body: dict[str, Any]) -> CallOptions:
    """What `body` tells the gateway. Raises: RequestError."""
    try:
        return CallOptions.model_validate(body)
    except ValidationError as problem:
        raise refusal(problem, body) from problem


def usable_id(text: str, param: str) -> str:
    """`text`, which names a request or a session. Raises: RequestError."""
    if not 0 < len(text) <= MAX_ID_CHARS:
        raise RequestError(ErrorCode.INVALID_VALUE, "no usable id", param)
    return text


def is_streamed(body: dict[str, Any]) -> bool:
    """Whether an OpenAI call asks for a stream; its default is the other one than ours."""
    return body.get("stream") is True


def one_prompt(body: dict[str, Any]) -> dict[str, Any]:
    """`body` of `/v1/completions` with its prompt as text. Raises: RequestError for several
    prompts.
    """
    prompt = body.get("prompt")
    if not isinstance(prompt, list):
        return body
    if len(prompt) != 1 or not isinstance(prompt[0], str):
        text = "one prompt per request, as text"
        raise RequestError(ErrorCode.INVALID_VALUE, text, "prompt")
    return body | {"prompt": prompt[0]}
