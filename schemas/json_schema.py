"""JSON Schema (2020-12) of every record value, for programs that are not ours.

Request and control come from the models that decode them; the response events, which we only
write, are described here by hand. `headrace.deploy.documents` writes
the copies in `docs/schemas/`.
"""

import json
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from headrace.schemas.control import Control
from headrace.schemas.errors import ErrorCode
from headrace.schemas.event import FINISH_REASONS
from headrace.schemas.headers import EventType
from headrace.schemas.request import GenerationRequest

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MILLISECONDS: Schema = {"type": "number", "minimum": 0}
_TOKEN_IDS: Schema = {"type": "array", "items": _COUNT}


def schemas() -> dict[str, Schema]:
    """Every schema by name; the name is its file's stem in `docs/schemas/`."""
    control: TypeAdapter[Control] = TypeAdapter(Control)
    return {
        "request": _named(
            EventType.REQUESTED, null_is_absent(GenerationRequest.model_json_schema())
        ),
        "control": _named(EventType.CONTROL, null_is_absent(control.json_schema())),
        "chunk": _named(EventType.CHUNK, _chunk()),
        "completed": _named(EventType.COMPLETED, _completed()),
        "failed": _named(EventType.FAILED, _failed()),
    }


def file_text(schema: Schema) -> str:
    """`schema` as its file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _named(kind: EventType, schema: Schema) -> Schema:
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": f"urn:{kind.value}"}
    return head | {"title": kind.value} | {k: v for k, v in schema.items() if k != "title"}


def null_is_absent(schema: Schema) -> Schema:
    """A model's `schema`, null allowed wherever a field may be absent, without made-up titles."""
    for found in [schema, *schema.get("$defs", {}).values()]:
        for name, field in found.get("properties", {}).items():
            field.pop("title", None)
            if name not in found.get("required", []):
                found["properties"][name] = _nullable(field)
    return schema


def _nullable(field: Schema) -> Schema:
    if {"type": "null"} in field.get("anyOf", []):
        return field
    outside = {k: v for k, v in field.items() if k in ("description", "default")}
    inside = {k: v for k, v in field.items() if k not in outside}
    return {"anyOf": [inside, {"type": "null"}]} | outside


def _object(properties: Schema, *, optional: Schema | None = None) -> Schema:
    """An object with all of `properties`, and perhaps the `optional` ones; others are ignored."""
    return {
        "type": "object",
        "properties": properties | (optional or {}),
        "required": list(properties),
    }


def _event(kind: str, choice: Schema, last: Schema) -> Schema:
    """An event that is no failure; `last` are the fields that only the last one has."""
    properties = {
        "id": _STRING,
        "object": {"const": kind},
        "created": _COUNT,
        "model": _STRING,
        "system_fingerprint": _STRING,
        "session_id": _STRING,
        "attempt": _COUNT,
        "sequence_number": _COUNT,
        "choices": {"type": "array", "minItems": 1, "maxItems": 1, "items": choice},
    }
    return _object(properties | last, optional={"prompt_token_ids": _TOKEN_IDS})


def _choice(part: str, finish_reason: Schema) -> Schema:
    """`part` is `delta` or `message`: a delta names its role in the first event only."""
    role: Schema = {"role": {"const": "assistant"}}
    content: Schema = {"content": _STRING}
    text = _object(content, optional=role) if part == "delta" else _object(role | content)
    properties = {"index": {"const": 0}, part: text, "finish_reason": finish_reason}
    return _object(properties, optional={"token_ids": _TOKEN_IDS})


def _chunk() -> Schema:
    choice = _choice("delta", {"type": "null"})
    description = "A piece of the answer, with more to come."
    return {"description": description} | _event("chat.completion.chunk", choice, {})


def _completed() -> Schema:
    usage = _object(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        }
    )
    names = ("queue_ms", "prefill_ms", "ttft_ms", "decode_ms")
    last = {
        "usage": usage,
        "timings": _object(dict.fromkeys(names, _MILLISECONDS)),
        "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "metadata": {"type": "object", "additionalProperties": _STRING, "maxProperties": 16},
    }
    reason: Schema = {"enum": list(FINISH_REASONS)}
    kinds = {"chat.completion.chunk": "delta", "chat.completion": "message"}
    return {
        "description": "The last event of a generation; a chat.completion with `stream: false`.",
        "oneOf": [_event(kind, _choice(part, reason), last) for kind, part in kinds.items()],
    }


def _failed() -> Schema:
    error = _object(
        {
            "type": {"enum": ["invalid_request_error", "server_error"]},
            "code": {"enum": [code.value for code in ErrorCode]},
            "message": _STRING,
            "param": {"type": ["string", "null"]},
        }
    )
    properties = {
        "id": _STRING,
        "object": {"const": "error"},
        "created": _COUNT,
        "session_id": _STRING,
        "attempt": _COUNT,
        "sequence_number": _COUNT,
        "error": error,
    }
    return {"description": "The last event of a generation that failed."} | _object(properties)
