"""The request record (contract §2): decoding, checks, defaults.

Knows nothing of the model: window, vocabulary and aliases are checked where the model is loaded.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from headrace.schemas.answer_schema import check_bounds
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.headers import Headers, header_text
from headrace.schemas.replay import Origin, replayed_origin
from headrace.schemas.strict_json import decode_object, is_text, readable_names
from headrace.schemas.wire import WireModel, refusal

MAX_ID_CHARS = 512
DEFAULT_TENANT = "default"
TENANT_HEADER = "headrace-tenant"
REQUEST_ID_HEADER = "headrace-request-id"
"""Takes the place of the body's `request_id`, so that the same bytes can be asked again."""

MAX_INT = 2**63 - 1
"""Where the contract names no upper bound: what a 64-bit integer holds."""

_TOKEN_ID = re.compile("^(0|[1-9][0-9]{0,8})$")

Identifier = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


def _token_id(name: str) -> str:
    if not _TOKEN_ID.fullmatch(name):
        raise ValueError("the name must be a token id: an integer in decimal digits")
    return name


TokenIdName = Annotated[
    str,
    AfterValidator(_token_id),
    WithJsonSchema({"type": "string", "pattern": _TOKEN_ID.pattern}),
]


class TextPart(WireModel):
    """One piece of a message's content; text is the only kind."""

    type: Literal["text"]
    text: str


def _content_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "string"
    return "parts" if isinstance(value, list) else None


Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("parts")],
    Discriminator(
        _content_kind,
        custom_error_type="content_kind",
        custom_error_message="must be a string or an array of text parts",
    ),
]


class Message(WireModel):
    """A chat message as the OpenAI API has it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class JsonSchemaFormat(WireModel):
    """`response_format.json_schema` of the OpenAI API."""

    name: str = "response"
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = True
    """Either way the answer follows the schema, or the schema is refused."""

    @field_validator("schema_")
    @classmethod
    def _bounded(cls, schema: dict[str, Any]) -> dict[str, Any]:
        check_bounds(schema)
        return schema


_SCHEMA_WHERE_NEEDED: dict[str, Any] = {
    "if": {"properties": {"type": {"const": "json_schema"}}, "required": ["type"]},
    "then": {"properties": {"json_schema": {"type": "object"}}, "required": ["json_schema"]},
    "else": {"properties": {"json_schema": {"type": "null"}}},
}
_EXACTLY_ONE_INPUT: dict[str, Any] = {
    "oneOf": [
        {"properties": {"messages": {"type": "array"}}, "required": ["messages"]},
        {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    ]
}


class ResponseFormat(WireModel):
    """What shape the answer must have."""

    model_config = ConfigDict(json_schema_extra=_SCHEMA_WHERE_NEEDED)

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchemaFormat | None = None

    @property
    def schema_text(self) -> str | None:
        """The JSON schema of the answer; None for text."""
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.json_schema is None else self.json_schema.schema_
        return orjson.dumps(schema).decode()

    @model_validator(mode="after")
    def _schema_where_needed(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is needed with type 'json_schema', and only then")
        return self


_STOP_STRING = {"type": "string", "minLength": 1, "maxLength": 256}
_STOP_SCHEMA = {"anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": 4}]}
StopString = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
Bias = Annotated[float, Field(ge=-100, le=100)]
MetadataName = Annotated[str, Field(max_length=64)]
MetadataText = Annotated[str, Field(max_length=512)]


class GenerationRequest(WireModel):
    """The body of a request. Absent and null are the same; unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra=_EXACTLY_ONE_INPUT)

    request_id: Identifier | None = None
    session_id: Identifier | None = None
    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)
    prompt: str | None = None
    context: Literal["append", "replace"] | None = None
    turn: int | None = Field(None, ge=0, le=MAX_INT)
    truncation: Literal["disabled", "auto"] = "disabled"
    model: str | None = None
    max_tokens: int = Field(256, ge=1, le=MAX_INT)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=MAX_INT)
    seed: int | None = Field(None, ge=-MAX_INT - 1, le=MAX_INT)
    stop: Annotated[list[StopString], WithJsonSchema(_STOP_SCHEMA)] = Field(
        default_factory=list, max_length=4, fail_fast=True
    )
    stop_token_ids: list[TokenId] = Field(default_factory=list, fail_fast=True)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    logit_bias: dict[TokenIdName, Bias] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    ignore_eos: bool = False
    response_format: ResponseFormat = ResponseFormat()
    stream: bool = True
    return_token_ids: bool = False
    priority: int = Field(0, ge=-100, le=100)
    ttl_ms: int | None = Field(None, gt=0, le=MAX_INT)
    tenant: Identifier | None = None
    metadata: dict[MetadataName, MetadataText] = Field(default_factory=dict, max_length=16)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def token_limit(self) -> int:
        """How many tokens may be generated; OpenAI's newer name wins."""
        return self.max_completion_tokens or self.max_tokens


def validate_request(body: dict[str, Any]) -> GenerationRequest:
    """Check `body` against the contract.

    Raises: RequestError `invalid_value` with `param`, the path of the first field that is wrong.
    """
    try:
        request = GenerationRequest.model_validate(body)
    except ValidationError as problem:
        raise refusal(problem, body) from problem
    if (request.messages is None) == (request.prompt is None):
        text = "exactly one of messages and prompt is needed"
        raise RequestError(ErrorCode.INVALID_VALUE, text, "messages")
    return request


@dataclass(frozen=True, slots=True)
class Record:
    """A consumed Kafka record, as bytes. `timestamp_ms` is the record's own."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """A request record with its names settled. Exactly one of `request` and `error` is set.

    `default_id`: the id is the record's place in the log, not a name that a client gave.
    `named_session`: the client named the session (a key), so `append` is its default context.
    `origin`: where it was first written; its own place, unless it is a replay.
    `for_comparison`: the answer is to be compared with another worker's, so its tokens are told and
    whatever model the client asked for, this worker's answers.
    """

    record: Record
    origin: Origin
    for_comparison: bool
    request_id: str
    default_id: bool
    session_id: str
    named_session: bool
    tenant: str
    request: GenerationRequest | None
    error: RequestError | None

    @property
    def wants_token_ids(self) -> bool:
        """Whether the events of its answer hold the ids."""
        request = self.request
        return request is not None and (self.for_comparison or request.return_token_ids)


def decode_request(record: Record, *, for_comparison: bool = False) -> DecodedRequest:
    """Read a request record; never raises for what is in it: a refusal is part of the result.

    The answer to a replayed record is always for comparison.
    """
    value = record.value or b""
    names: dict[str, Any] = {}
    request: GenerationRequest | None = None
    error: RequestError | None = None
    try:
        names = decode_object(value)
        request = validate_request(names)
        _check_session(record.key, request.session_id)
    except RequestError as problem:
        request, error = None, problem
        names = names or readable_names(value)
    replayed = replayed_origin(record.headers, record.timestamp_ms)
    origin = replayed or Origin(record.topic, record.partition, record.offset, record.timestamp_ms)
    default_id = origin.default_id
    request_id = header_request_id(record.headers) or _identifier(names.get("request_id"))
    key_session = session_of_key(record.key)
    return DecodedRequest(
        record=record,
        origin=origin,
        for_comparison=for_comparison or replayed is not None,
        request_id=request_id or default_id,
        default_id=request_id is None,
        session_id=key_session or request_id or default_id,
        named_session=key_session is not None,
        tenant=_identifier(names.get("tenant")) or header_tenant(record.headers),
        request=request,
        error=error,
    )


def header_tenant(headers: Headers) -> str:
    """The tenant of a record that names none in its body."""
    return _identifier(header_text(headers, TENANT_HEADER)) or DEFAULT_TENANT


def header_request_id(headers: Headers) -> str | None:
    """The id that a header gives to a request, whatever its body says; None without a usable one.

    NOTE: it is for who writes records; the gateway hands no header of its clients on but the trace.
    """
    return _identifier(header_text(headers, REQUEST_ID_HEADER))


def _check_session(key: bytes | None, session_id: str | None) -> None:
    key_session = session_of_key(key)
    if session_id is not None and session_id != key_session:
        text = "must equal the record's key, or the session's order would be lost"
        raise RequestError(ErrorCode.SESSION_KEY_MISMATCH, text, "session_id")
    if key and key_session is None:
        text = f"the record's key must be UTF-8 of at most {MAX_ID_CHARS} characters"
        raise RequestError(ErrorCode.INVALID_TEXT, text, "session_id")


def session_of_key(key: bytes | None) -> str | None:
    """The session that a record's key names; None without a usable key."""
    try:
        return _identifier((key or b"").decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _identifier(value: Any) -> str | None:
    """`value` if it can name something: in a header, a Redis key and an event."""
    usable = isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and is_text(value)
    return str(value) if usable else None
