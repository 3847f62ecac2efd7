"""The four topics as channels, messages and schemas of an AsyncAPI 3.0 document.

The shapes come from the models and functions that read and write the records. Knows nothing of
WebSockets; the document is put together by `headrace.consumers.asyncapi`.
"""

from typing import Any

from headrace.schemas.dead_letter import HEADER_PREFIX
from headrace.schemas.headers import TRACE_HEADERS, EventType, cloud_event_headers
from headrace.schemas.json_schema import Schema, schemas
from headrace.schemas.replay import Origin, replay_headers
from headrace.schemas.request import REQUEST_ID_HEADER, TENANT_HEADER

KAFKA_BINDING_VERSION = "0.5.0"
DEFAULT_PREFIX = "headrace"
SCHEMA_REF = "#/components/schemas/"

_CONTENT_TYPE = "application/json"
_KEY: Schema = {"type": "string", "description": "the session id, in UTF-8"}
_TEXT: Schema = {"type": "string"}
_DIGITS: Schema = {"type": "string", "pattern": "^-?[0-9]+$"}

_TOPICS = {
    "requests": "Requests, in the order of their sessions; read `read_committed`.",
    "responses": "Every event of every answer; one partition number per session.",
    "control": "Cancels, and sessions to be forgotten.",
    "dlq": "Records that hold no request or that keep failing, as they were.",
}

_MESSAGES: dict[str, tuple[str, EventType, str]] = {
    "request": ("requests", EventType.REQUESTED, "A request; all headers are optional."),
    "chunk": ("responses", EventType.CHUNK, "A piece of an answer, with more to come."),
    "completed": ("responses", EventType.COMPLETED, "The last event of an answer."),
    "failed": ("responses", EventType.FAILED, "The last event of a request that failed."),
    "control": ("control", EventType.CONTROL, "A control record; all headers are optional."),
}


def topic_channels() -> dict[str, Schema]:
    """The channels by name; a topic's name is its prefix and the channel's name."""
    return {
        name: {
            "address": f"{{prefix}}.{name}",
            "description": about,
            "parameters": {
                "prefix": {"default": DEFAULT_PREFIX, "description": "HEADRACE_TOPIC_PREFIX"}
            },
            "servers": [{"$ref": "#/servers/kafka"}],
            "messages": {
                message: {"$ref": f"#/components/messages/{message}"}
                for message in _messages_of(name)
            },
            "bindings": {
                "kafka": {
                    "topicConfiguration": {"cleanup.policy": ["delete"]},
                    "bindingVersion": KAFKA_BINDING_VERSION,
                }
            },
        }
        for name, about in _TOPICS.items()
    }


def topic_operations() -> dict[str, Schema]:
    """What the workers do with each topic."""
    actions = {"requests": "receive", "responses": "send", "control": "receive", "dlq": "send"}
    return {
        f"{action}{name.capitalize()}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [
                {"$ref": f"#/channels/{name}/messages/{message}"} for message in _messages_of(name)
            ],
        }
        for name, action in actions.items()
    }


def topic_messages() -> dict[str, Schema]:
    """The messages by name."""
    found = {
        name: {
            "name": kind.value,
            "summary": about,
            "contentType": _CONTENT_TYPE,
            "headers": _headers(name, kind),
            "payload": {"$ref": SCHEMA_REF + name},
            "bindings": _key_binding(_KEY),
        }
        for name, (_topic, kind, about) in _MESSAGES.items()
    }
    found["tombstone"] = {
        "name": "tombstone",
        "summary": "Null under a session's key: forget it, in order with its requests.",
        "payload": {"type": "null"},
        "bindings": _key_binding(_KEY),
    }
    found["dead_letter"] = {
        "name": "dead_letter",
        "summary": "The original key, value and headers; all bytes are possible.",
        "headers": _dead_letter_headers(),
        "payload": {"description": "whatever stood there, null too"},
        "bindings": _key_binding({"type": ["string", "null"], "description": "the original's"}),
    }
    return found


def topic_schemas() -> dict[str, Schema]:
    """The schemas of record values by name, with those they refer to."""
    found: dict[str, Schema] = {}
    for name, schema in schemas().items():
        found |= hoisted(name, schema)
    return found


def hoisted(name: str, schema: Schema) -> dict[str, Schema]:
    """`schema` and its `$defs` side by side, as the components of one document."""
    parts = {name: schema} | schema.get("$defs", {})
    dropped = ("$defs", "$schema", "$id")
    return {
        part: _pointing_to_components({k: v for k, v in it.items() if k not in dropped})
        for part, it in parts.items()
    }


def _pointing_to_components(value: Any) -> Any:
    if isinstance(value, list):
        return [_pointing_to_components(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: _pointing_to_components(item) for name, item in value.items()}
    if isinstance(found.get("$ref"), str):
        found["$ref"] = found["$ref"].replace("#/$defs/", SCHEMA_REF)
    return found


def _messages_of(topic: str) -> list[str]:
    more = {"requests": ["tombstone"], "dlq": ["dead_letter"]}
    return [name for name, (home, _, _) in _MESSAGES.items() if home == topic] + more.get(topic, [])


def _key_binding(key: Schema) -> Schema:
    return {"kafka": {"key": key, "bindingVersion": KAFKA_BINDING_VERSION}}


def _headers(name: str, kind: EventType) -> Schema:
    """CloudEvents in binary mode, trace context and ours; of what we write, the sure ones are
    required.
    """
    cloud = cloud_event_headers(kind, event_id="", source="", subject="", time_s=0.0)
    fixed = ("ce_specversion", "ce_type", "content-type")
    properties: Schema = {
        header: {"const": value.decode()} if header in fixed else _TEXT for header, value in cloud
    }
    properties |= dict.fromkeys((*TRACE_HEADERS, TENANT_HEADER), _TEXT)
    if name == "request":
        replayed = replay_headers("", Origin("", 0, 0, 0))
        properties |= dict.fromkeys((REQUEST_ID_HEADER, *(header for header, _ in replayed)), _TEXT)
    found: Schema = {"type": "object", "properties": properties}
    if name in ("chunk", "completed", "failed"):
        properties["headrace-worker"] = _TEXT
        required = [header for header, _ in cloud]
        found["required"] = [*required, TENANT_HEADER, "headrace-worker"]
    return found


def _dead_letter_headers() -> Schema:
    texts = dict.fromkeys(("reason", "error", "topic"), _TEXT)
    numbers = dict.fromkeys(("partition", "offset", "timestamp", "attempts"), _DIGITS)
    properties = {HEADER_PREFIX + name: schema for name, schema in (texts | numbers).items()}
    return {"type": "object", "properties": properties, "required": list(properties)}
