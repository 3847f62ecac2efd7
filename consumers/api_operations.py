"""What the HTTP API's document says of each route; `openapi.py` puts it together."""

from headrace.consumers.openai_answers import (
    CancelAccepted,
    ChatCompletion,
    Health,
    Model,
    ModelList,
    SessionDeleted,
    TextCompletion,
)
from headrace.consumers.openapi import IDENTIFIER, Operation, parameter
from headrace.schemas.request import MAX_ID_CHARS

_AUTH = (401,)
_WRITING = (400, *_AUTH, 408, 413, 415, 503)
_GENERATING = (*_WRITING, 404, 410, 429, 500, 504)

_IDEMPOTENCY_KEY = parameter(
    "Idempotency-Key",
    "header",
    "the request's id where the body names none: a second call reads the first one's answer",
    {"type": "string", "maxLength": MAX_ID_CHARS},
)
_TRACEPARENT = parameter(
    "traceparent", "header", "W3C trace context; handed on to every event", {"type": "string"}
)
_SESSION = parameter(
    "session_id",
    "query",
    "where to look; else everywhere",
    {"type": "string", "maxLength": MAX_ID_CHARS},
)

_STREAM = (
    "with `stream: true`; an ErrorAnswer where the answer breaks off; the last one is `[DONE]`"
)

_HELLO = {"messages": [{"role": "user", "content": "Where does the Thames end?"}]}

CHAT = Operation(
    "POST",
    "/v1/chat/completions",
    "Answer a chat",
    "openai",
    parameters=[_IDEMPOTENCY_KEY, _TRACEPARENT],
    body="ChatCall",
    examples={
        "whole": _HELLO | {"model": "smollm2-135m", "max_tokens": 64},
        "stream": _HELLO | {"stream": True, "stream_options": {"include_usage": True}},
        "session": _HELLO | {"session_id": "s1", "stream": True, "background": True},
    },
    answer=ChatCompletion,
    errors=_GENERATING,
    names_ignored=True,
    stream=("ChatCompletionChunk", "ErrorAnswer"),
    stream_about=_STREAM,
)
TEXT = Operation(
    "POST",
    "/v1/completions",
    "Complete a text",
    "openai",
    parameters=[_IDEMPOTENCY_KEY, _TRACEPARENT],
    body="TextCall",
    examples={"whole": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}},
    answer=TextCompletion,
    errors=_GENERATING,
    names_ignored=True,
    stream=("TextCompletionChunk", "ErrorAnswer"),
    stream_about=_STREAM,
)
MODELS = Operation(
    "GET", "/v1/models", "The models that answer here", "openai", answer=ModelList, errors=_AUTH
)
MODEL = Operation(
    "GET",
    "/v1/models/{name:path}",
    "One model",
    "openai",
    parameters=[parameter("name", "path", "its alias", {"type": "string"})],
    answer=Model,
    errors=(*_AUTH, 404),
)

_REQUEST = parameter("request_id", "path", "the request's id", IDENTIFIER)

_CURSOR = {"type": "string", "pattern": r"^(c1\.[0-9]{1,9}\.[0-9]{1,18})?$"}

EVENTS = Operation(
    "GET",
    "/v1/requests/{request_id:path}/events",
    "Read a request's events, from any place",
    "requests",
    parameters=[
        _REQUEST,
        _SESSION,
        parameter(
            "starting_after",
            "query",
            "the last sequence number that the reader has; -1 for none",
            {"type": "integer", "minimum": -1, "maximum": 10**17},
        ),
        parameter("cursor", "query", "the `id:` of the last event", _CURSOR),
        parameter("Last-Event-ID", "header", "the same, as browsers send it", _CURSOR),
    ],
    stream=("chunk", "completed", "failed", "ErrorAnswer"),
    stream_about="each event's `id` is a cursor; an `event: error` ends the stream before its end",
    errors=(400, *_AUTH, 404, 410, 503),
    empty="there is nothing more to read",
)
CANCEL = Operation(
    "POST",
    "/v1/requests/{request_id:path}/cancel",
    "Cancel a request",
    "requests",
    parameters=[_REQUEST, _SESSION],
    body="CancelCall",
    body_required=False,
    examples={"session": {"session_id": "s1"}},
    answer=CancelAccepted,
    status=202,
    errors=_WRITING,
)
DELETE = Operation(
    "DELETE",
    "/v1/sessions/{session_id:path}",
    "Forget a conversation and its KV state",
    "sessions",
    parameters=[parameter("session_id", "path", "the session", IDENTIFIER)],
    answer=SessionDeleted,
    status=202,
    errors=(400, *_AUTH, 503),
)

HEALTH = Operation(
    "GET", "/healthz", "Whether the process lives", "operations", answer=Health, is_open=True
)
READINESS = Operation(
    "GET",
    "/readyz",
    "Whether the response log is read",
    "operations",
    answer=Health,
    is_open=True,
    also={503: Health},
)
METRICS = Operation("GET", "/metrics", "Prometheus metrics", "operations", is_open=True)
