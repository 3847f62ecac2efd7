"""The base of every model that is read from the wire, and how its refusals are put to people.

Owns the strictness all of them share, the path of the field that is wrong, and one sentence on what
is allowed there. Knows pydantic's error types; knows nothing of the single fields.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from headrace.schemas.errors import ErrorCode, RequestError

MAX_PATH_CHARS = 256
"""A path may hold names that a client made up; an error must stay small enough to be sent."""

_TEXTS = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of at most 64 bits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} items",
    "extra_forbidden": "is unknown",
}


class WireModel(BaseModel):
    """Nothing is converted, null is absent, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


def refusal(problem: ValidationError, body: Any) -> RequestError:
    """The first of `problem`'s findings in `body`, as `invalid_value` with `param`."""
    first = problem.errors(include_url=False)[0]
    return RequestError(ErrorCode.INVALID_VALUE, explain(first), _param(first, body))


def explain(error: ErrorDetails) -> str:
    """What is allowed, and what came instead, in a few words that follow the field's name."""
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "value_error":
        return str(context["error"])
    if kind not in _TEXTS:
        return error["msg"]
    text = _TEXTS[kind].format(**{name: _short(limit) for name, limit in context.items()})
    is_range = kind.startswith(("greater", "less")) and isinstance(value, int | float)
    return f"{text}, not {described(value)}" if is_range or kind.endswith("_type") else text


def described(value: Any) -> str:
    """A JSON value in a sentence: short ones as they stand, others by their kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value) if abs(value) < 2**64 else "a number out of range"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def _short(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def path_text(parts: Iterable[int | str]) -> str | None:
    """`messages.0.content`; None for the whole body."""
    text = ".".join(str(part) for part in parts)
    if not text:
        return None
    return text if len(text) <= MAX_PATH_CHARS else text[: MAX_PATH_CHARS - 1] + "…"


def _param(error: ErrorDetails, body: Any) -> str | None:
    """The path of the field, without pydantic's marks (union branch, `[key]`)."""
    path: list[int | str] = []
    for part in error["loc"]:
        if isinstance(body, dict) and part in body:
            body = body[str(part)]
        elif isinstance(body, list) and isinstance(part, int):
            body = body[part]
        else:
            continue
        path.append(part)
    if error["type"] == "missing" and path[-1:] != [error["loc"][-1]]:
        path.append(error["loc"][-1])
    return path_text(path)
