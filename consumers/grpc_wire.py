"""gRPC messages as what the rest of the gateway speaks: a request's body, an event of the log.

Owns the names of both sides. Checks only what protobuf cannot say and the body no longer shows;
the rest is `headrace.consumers.submission`'s.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from headrace.consumers.log_event import LogEvent
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.headers import header_text
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.reply import event_text, is_last
from headrace.schemas.strict_json import decode_object

M = TypeVar("M", bound=Message)
_ENUMS: dict[str, EnumTypeWrapper] = {"context": pb.Context, "truncation": pb.Truncation}


def body_of(request: pb.GenerateRequest) -> dict[str, Any]:
    """The request's body, as the contract has it. Raises: RequestError with `param`."""
    body: dict[str, Any] = {}
    for field, value in request.ListFields():
        name = field.name
        if name in _ENUMS:
            body[name] = _enum_name(_ENUMS[name], value, name)
        elif name == "messages":
            body[name] = [_message(it, f"messages.{at}") for at, it in enumerate(value)]
        elif name == "response_format":
            body[name] = _response_format(value)
        elif name == "logit_bias":
            body[name] = {str(token_id): bias for token_id, bias in value.items()}
        elif name == "metadata":
            body[name] = dict(value)
        else:
            body[name] = list(value) if name in ("stop", "stop_token_ids") else value
    return body


def _message(message: pb.Message, path: str) -> dict[str, Any]:
    role = _enum_name(pb.Role, message.role, f"{path}.role")
    return {"role": role, "content": message.content}


def _response_format(format_: pb.ResponseFormat) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": _enum_name(pb.ResponseFormat.Type, format_.type, "response_format.type")
    }
    if format_.HasField("json_schema"):
        told = format_.json_schema
        optional = {name: getattr(told, name) for name in ("name", "strict") if told.HasField(name)}
        body["json_schema"] = optional | {"schema": _schema(told.schema)}
    return body


def _schema(text: str) -> dict[str, Any]:
    """NOTE: checked as deep as the worker finds it, or it would be refused only there."""
    try:
        schema = decode_object(text.encode())
        decode_object(orjson.dumps({"response_format": {"json_schema": {"schema": schema}}}))
    except RequestError as problem:
        param = "response_format.json_schema.schema"
        raise RequestError(ErrorCode.INVALID_VALUE, problem.message, param) from problem
    return schema


def _enum_name(enum: EnumTypeWrapper, number: int, param: str) -> str | None:
    """`append` of CONTEXT_APPEND; None where it is unspecified."""
    if number == 0:
        return None
    if number not in enum.values():
        raise RequestError(ErrorCode.INVALID_VALUE, f"there is no value {number}", param)
    zero = enum.Name(0)
    return enum.Name(number).removeprefix(zero.removesuffix("UNSPECIFIED")).lower()


def response_of(event: LogEvent) -> pb.StreamResponse:
    """An event of the log as a message."""
    body = event.event
    response = pb.StreamResponse(
        request_id=event.request_id,
        session_id=event.session_id,
        cursor=event.cursor,
        attempt=body["attempt"],
        sequence_number=body["sequence_number"],
        created=body.get("created"),
        model=body.get("model"),
        system_fingerprint=body.get("system_fingerprint"),
        worker=header_text(event.headers, "headrace-worker"),
    )
    if body["object"] == "error":
        response.failed.error.CopyFrom(_error(body["error"]))
    elif is_last(body):
        response.completed.CopyFrom(_completed(body))
    else:
        response.chunk.CopyFrom(pb.Chunk(**_piece(body)))
    return response


def _piece(body: Mapping[str, Any]) -> dict[str, Any]:
    choice = body["choices"][0]
    role = choice.get("delta", choice.get("message", {})).get("role")
    return {
        "role": None if role is None else _enum_number(pb.Role, role),
        "content": event_text(dict(body)),
        "token_ids": choice.get("token_ids"),
        "prompt_token_ids": body.get("prompt_token_ids"),
    }


def _completed(body: Mapping[str, Any]) -> pb.Completed:
    usage = body.get("usage") or {}
    details = _known(pb.Usage.PromptTokensDetails, usage.get("prompt_tokens_details"))
    reason = body["choices"][0]["finish_reason"]
    return pb.Completed(
        **_piece(body),
        finish_reason=_enum_number(pb.FinishReason, reason),
        usage=_known(pb.Usage, usage | {"prompt_tokens_details": details}),
        timings=_known(pb.Timings, body.get("timings")),
        seed=body.get("seed"),
        metadata=body.get("metadata"),
    )


def _known(kind: type[M], body: Mapping[str, Any] | None) -> M:
    """`kind` of the fields that it has; others came later than this code."""
    names = kind.DESCRIPTOR.fields_by_name
    return kind(**{name: value for name, value in (body or {}).items() if name in names})


def _error(error: Mapping[str, Any]) -> pb.Error:
    texts = {name: str(error.get(name) or "") for name in ("type", "code", "message")}
    return pb.Error(**texts, param=error.get("param"))


def _enum_number(enum: EnumTypeWrapper, name: str) -> Any:
    """0, unspecified, for a name that came later than this code."""
    full = enum.Name(0).removesuffix("UNSPECIFIED") + name.upper()
    return enum.Value(full) if full in enum.keys() else 0  # noqa: SIM118 - no mapping
