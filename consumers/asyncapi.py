"""The AsyncAPI 3.0 document: the four topics and the WebSocket, made from the code.

Owns the channel of `/v1/stream`, both directions; the topics are `schemas/topic_channels.py`.
"""

from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from headrace.consumers.server_frames import SERVER_FRAMES
from headrace.consumers.socket_frames import CancelFrame, Generate, Ping, Subscribe
from headrace.consumers.submission import CallOptions
from headrace.schemas.json_schema import Schema, null_is_absent
from headrace.schemas.request import GenerationRequest
from headrace.schemas.topic_channels import (
    SCHEMA_REF,
    hoisted,
    topic_channels,
    topic_messages,
    topic_operations,
    topic_schemas,
)

_ABOUT = """\
Language models as a durable stream. Unknown fields, headers and frames' fields are ignored by
every reader. The HTTP API is described in `openapi.json`."""

_CLIENT_ABOUT = {
    "generate": "Produce a request and follow its events. Unless `background` is false it goes on "
    "when the socket closes.",
    "subscribe": "Follow a session or a request, from a place in the log.",
    "cancel": "Cancel a request.",
    "ping": "Answered with `pong`.",
}


def document() -> Schema:
    """The document; the same code gives the same."""
    frames = client_frames() | server_frames()
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Headrace", "version": version("headrace"), "description": _ABOUT},
        "defaultContentType": "application/json",
        "servers": _servers(),
        "channels": topic_channels() | {"stream": _stream_channel()},
        "operations": topic_operations() | _stream_operations(),
        "components": {
            "messages": topic_messages() | _frame_messages(),
            "schemas": dict(sorted((topic_schemas() | frames).items())),
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "a key of HEADRACE_API_KEYS_FILE; browsers send it as "
                    "subprotocol `headrace.key.<base64url>` beside `headrace.v1`",
                }
            },
        },
    }


def client_frames() -> dict[str, Schema]:
    """The schemas of what clients send, by component name."""
    found: dict[str, Schema] = {}
    for name, model in (("subscribe", Subscribe), ("cancel", CancelFrame), ("ping", Ping)):
        found |= hoisted(f"{name}Frame", null_is_absent(model.model_json_schema()))
    return found | hoisted("generateFrame", _generate())


def server_frames() -> dict[str, Schema]:
    """The schemas of what the gateway sends, by component name."""
    found: dict[str, Schema] = {}
    for name, shape in SERVER_FRAMES.items():
        schema: Schema = TypeAdapter(shape).json_schema(mode="serialization")
        found |= hoisted(f"{name}Frame", schema)
    events = [{"$ref": SCHEMA_REF + name} for name in ("chunk", "completed", "failed")]
    found["eventFrame"]["properties"]["event"] = {"oneOf": events}
    return found


def _generate() -> Schema:
    """A request's fields beside the frame's own."""
    schema = null_is_absent(GenerationRequest.model_json_schema())
    options = null_is_absent(CallOptions.model_json_schema())
    properties = schema["properties"] | Generate.model_json_schema()["properties"]
    del properties["tenant"]
    properties["background"] = options["properties"]["background"] | {"default": True}
    schema["required"] = ["type"]
    return schema | {"properties": properties, "title": "Generate"}


def _servers() -> Schema:
    return {
        "kafka": {"host": "localhost:9092", "protocol": "kafka", "description": "HEADRACE_KAFKA"},
        "gateway": {
            "host": "localhost:8080",
            "protocol": "ws",
            "description": "HEADRACE_HTTP_HOST and HEADRACE_HTTP_PORT; without API keys no key "
            "is asked for",
            "security": [{"$ref": "#/components/securitySchemes/apiKey"}],
        },
    }


def _stream_channel() -> Schema:
    return {
        "address": "/v1/stream",
        "description": "JSON text frames. A reader that falls behind is closed with 1013 and goes "
        "on from its last cursor, at any gateway.",
        "servers": [{"$ref": "#/servers/gateway"}],
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _frame_messages()},
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def _stream_operations() -> Schema:
    def operation(action: str, names: Any) -> Schema:
        messages = [{"$ref": f"#/channels/stream/messages/{name}Frame"} for name in names]
        return {"action": action, "channel": {"$ref": "#/channels/stream"}, "messages": messages}

    return {
        "receiveFrames": operation("receive", _CLIENT_ABOUT),
        "sendFrames": operation("send", SERVER_FRAMES),
    }


def _frame_messages() -> dict[str, Schema]:
    about = _CLIENT_ABOUT | {name: shape.__doc__ or "" for name, shape in SERVER_FRAMES.items()}
    return {
        f"{name}Frame": {
            "name": name,
            "summary": text,
            "payload": {"$ref": f"{SCHEMA_REF}{name}Frame"},
        }
        for name, text in about.items()
    }
