"""The HTTP API's own document, made from its routes and from the models that check its bodies.

FastAPI writes it; endpoints stay plain functions of a request, because bodies are read by our own
bounded and strict reader (`bodies.py`). The WebSocket stands in `asyncapi.py`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from headrace.consumers.admission import LIMIT_HEADERS
from headrace.consumers.http_calls import IGNORED_FIELDS, REQUEST_ID
from headrace.consumers.openai_answers import ChatCompletionChunk, ErrorAnswer, TextCompletionChunk
from headrace.consumers.submission import CallOptions, CancelCall
from headrace.schemas.json_schema import Schema, null_is_absent, schemas
from headrace.schemas.request import MAX_ID_CHARS, GenerationRequest
from headrace.schemas.topic_channels import hoisted

Endpoint = Callable[[Request], Awaitable[Response]]

_REF = "#/components/schemas/{model}"

IDENTIFIER: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS}

_ABOUT = """\
Language models as a durable Kafka stream, behind OpenAI's HTTP API. Unknown fields of a body are
ignored and named in `headrace-ignored-fields`. Without `HEADRACE_API_KEYS_FILE` no key is asked
for. The WebSocket `/v1/stream` is described in `asyncapi.json`."""

_ABOUT_STATUS = {
    200: "as asked",
    202: "taken",
    400: "the call is not valid; `param` names the field",
    401: "no API key, or one that is not known",
    404: "there is no such model or request",
    408: "the body did not come in time",
    410: "`resume_gap`: events of the request are gone from the log",
    413: "the body is too large",
    415: "the body is compressed",
    429: "`rate_limited`: too much, or too many calls at once",
    500: "the generation failed; the code says why",
    503: "`overloaded`, or not ready: try again",
    504: "`expired`: not begun within `ttl_ms`",
}

_SECURITY: Schema = {
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "a key of HEADRACE_API_KEYS_FILE"}
}
_REQUEST_ID_HEADER: Schema = {
    "description": "the request's id, percent-encoded where it is not plain; else this call's",
    "schema": {"type": "string"},
}
_IGNORED_HEADER: Schema = {
    "description": "names of the body's fields that change nothing",
    "schema": {"type": "string"},
}
_RETRY_AFTER_HEADER: Schema = {"description": "seconds", "schema": {"type": "integer"}}
_LIMIT_HEADER: Schema = {
    "description": "how the tenant's limits a minute stand; `reset`, as `1.050s`, says when all of "
    "it is free again. Absent where the tenant has no such limit.",
    "schema": {"type": "string"},
}
_LIMIT_HEADERS: Schema = dict.fromkeys(LIMIT_HEADERS, _LIMIT_HEADER)


@dataclass(frozen=True)
class Operation:
    """One route, and what the document says of it.

    `body`: a component's name. `errors`: statuses with an error body; `also`: others. `stream`:
    components that its server-sent events hold, `stream_about` in words. `empty`: what an answer
    204 means.
    """

    method: str
    path: str
    summary: str
    tag: str
    parameters: Sequence[Schema] = ()
    body: str | None = None
    body_required: bool = True
    examples: Schema | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    errors: Sequence[int] = ()
    also: Mapping[int, type[BaseModel]] = field(default_factory=dict)
    is_open: bool = False
    """Whether it is served without a key."""
    names_ignored: bool = False
    stream: Sequence[str] = ()
    stream_about: str = ""
    empty: str | None = None


class ApiRoute(APIRoute):
    """A documented route whose endpoint is called as Starlette would: nothing is parsed before."""

    def __init__(self, operation: Operation, endpoint: Endpoint) -> None:
        super().__init__(
            operation.path,
            endpoint,
            methods=[operation.method],
            summary=operation.summary,
            tags=[operation.tag],
            operation_id=endpoint.__name__,
            response_model=operation.answer,
            response_class=_response_class(operation),
            status_code=operation.status,
            response_description=_ABOUT_STATUS[operation.status],
            responses=_other_answers(operation),
            openapi_extra=_extra(operation),
        )
        # an id may hold a line break, which a dot does not match by itself
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)

    def get_route_handler(self) -> Any:
        """The endpoint itself."""
        return self.endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers HEAD where there is GET, as Starlette's routes do."""
        if scope["method"] == "HEAD" and "GET" in (self.methods or ()):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


class DocumentedApp(FastAPI):
    """The application; `/openapi.json` is its document. No page of it: those load foreign code."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            title="Headrace gateway",
            version=version("headrace"),
            description=_ABOUT,
            docs_url=None,
            redoc_url=None,
            **options,
        )

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, with the bodies that FastAPI does not read."""
        if self.openapi_schema is None:
            found = super().openapi()
            components = found.setdefault("components", {})
            parts = components.get("schemas", {}) | body_schemas() | stream_schemas()
            components["schemas"] = dict(sorted(parts.items()))
            components["securitySchemes"] = _SECURITY
        return super().openapi()


def body_schemas() -> dict[str, Schema]:
    """The components of bodies: the schemas that requests are checked by."""
    found = {"CancelCall": null_is_absent(CancelCall.model_json_schema())}
    for name, kind in (("ChatCall", "messages"), ("TextCall", "prompt")):
        schema = null_is_absent(GenerationRequest.model_json_schema(ref_template=_REF))
        options = null_is_absent(CallOptions.model_json_schema(ref_template=_REF))
        found |= schema.pop("$defs") | options.pop("$defs")
        found[name] = _call(schema, options["properties"], kind)
    return found


def stream_schemas() -> dict[str, Schema]:
    """The components of streams: chunks as OpenAI has them, and the events themselves."""
    models: list[tuple[type[BaseModel], Literal["serialization"]]] = [
        (ChatCompletionChunk, "serialization"),
        (TextCompletionChunk, "serialization"),
    ]
    _, found = models_json_schema(models, ref_template=_REF)
    parts = dict(found["$defs"])
    events = {name: schemas()[name] for name in ("chunk", "completed", "failed")}
    for name, schema in events.items():
        parts |= hoisted(name, schema)
    return parts


def _call(schema: Schema, options: Schema, kind: str) -> Schema:
    """An HTTP call: no tenant, one kind of input, and no stream unless it asks for one."""
    properties = schema["properties"] | options
    del schema["oneOf"], properties["tenant"]
    other = {"messages": "prompt", "prompt": "messages"}[kind]
    properties[other] = {"type": "null", "description": f"only {kind} are taken here"}
    properties["stream"] = properties["stream"] | {"default": False}
    properties[kind] = properties[kind]["anyOf"][0]
    if kind == "prompt":
        text = properties[kind]
        one = {"type": "array", "items": text, "minItems": 1, "maxItems": 1}
        properties[kind] = {"anyOf": [text, one]}
    schema |= {"properties": properties, "required": [kind]}
    return schema


def _extra(operation: Operation) -> Schema:
    headers = {REQUEST_ID: _REQUEST_ID_HEADER}
    if operation.names_ignored:
        headers[IGNORED_FIELDS] = _IGNORED_HEADER
    if 429 in operation.errors:
        headers |= _LIMIT_HEADERS
    responses: dict[str, Schema] = {str(operation.status): {"headers": headers}}
    if operation.stream:
        schema = _server_sent_event(operation)
        responses[str(operation.status)]["content"] = {"text/event-stream": {"schema": schema}}
    if operation.empty is not None:
        responses["204"] = {"description": operation.empty}
    found: Schema = {"responses": responses}
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if not operation.is_open:
        found["security"] = [{"ApiKey": []}]
    if operation.body is not None:
        media: Schema = {"schema": {"$ref": _REF.format(model=operation.body)}}
        if operation.examples:
            media["examples"] = {name: {"value": it} for name, it in operation.examples.items()}
        found["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": media},
        }
    return found


def _server_sent_event(operation: Operation) -> Schema:
    """One event of a stream, as clients that read such streams see it."""
    bodies = {"anyOf": [{"$ref": _REF.format(model=name)} for name in operation.stream]}
    data = {"contentMediaType": "application/json", "contentSchema": bodies}
    return {
        "type": "object",
        "description": operation.stream_about,
        "properties": {
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, data]},
            "id": {"type": "string"},
            "event": {"type": "string"},
        },
        "required": ["data"],
    }


def _response_class(operation: Operation) -> type[Response]:
    """Says which content the document tells of, besides a stream's."""
    if operation.answer is not None:
        return JSONResponse
    return Response if operation.stream else PlainTextResponse


def _other_answers(operation: Operation) -> dict[int | str, dict[str, Any]]:
    models = dict.fromkeys(operation.errors, ErrorAnswer) | dict(operation.also)
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": model, "description": _ABOUT_STATUS[status]}
        for status, model in models.items()
    }
    for status in {429, 503} & set(operation.errors):
        found[status]["headers"] = {"Retry-After": _RETRY_AFTER_HEADER}
    if 429 in found:
        found[429]["headers"] |= _LIMIT_HEADERS
    return found


def parameter(name: str, place: str, about: str, schema: Schema) -> Schema:
    """A parameter in `place`: path, query or header."""
    found = {"name": name, "in": place, "description": about, "schema": schema}
    return found | {"required": place == "path"}
