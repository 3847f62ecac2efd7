"""Whether a value is what a part of our own documents says; for tests that see real ones."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from headrace.consumers import asyncapi


@cache
def _asyncapi() -> dict[str, Any]:
    return asyncapi.document()


def problems(document: Mapping[str, Any], pointer: str, value: Any) -> list[str]:
    """What is wrong with `value` by the schema at `pointer` of `document`; empty where nothing
    is.
    """
    schema = {"$ref": f"#{pointer}", **document}
    found = Draft202012Validator(schema).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in found]


def message_problems(message: str, value: Any, headers: Mapping[str, str]) -> list[str]:
    """The same for a record, by the AsyncAPI document."""
    place = f"/components/messages/{message}"
    found = problems(_asyncapi(), f"{place}/headers", dict(headers))
    return found + problems(_asyncapi(), f"{place}/payload", value)


def frame_problems(frame: Mapping[str, Any]) -> list[str]:
    """The same for a frame of the WebSocket, in either direction."""
    return problems(_asyncapi(), f"/components/schemas/{frame['type']}Frame", dict(frame))
