"""What the sessions of a load look like: the form of a shapes file, and the shapes that come along.

Owns the checks of such a file. Knows nothing of when sessions begin.
"""

from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from headrace.producers.load_spread import Exponential, LogNormal, Spread
from headrace.schemas.errors import HeadraceError, RequestError
from headrace.schemas.request import StopString, validate_request
from headrace.schemas.wire import WireModel, refusal

MAX_FILE_BYTES = 16 * 2**20

_SET_BY_US = {
    *("request_id", "session_id", "tenant", "messages", "prompt", "context", "turn"),
    *("max_tokens", "max_completion_tokens", "temperature", "stop", "stream", "return_token_ids"),
}


class ShapesError(HeadraceError):
    """A shapes file cannot be read, or a field of it is wrong; says which."""


class Shape(WireModel):
    """One kind of session. Units: `think_s` in seconds, from an answer's end to the next turn."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=64)] = "session"
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """How often sessions have this shape, against the weights of the others."""
    turns: Spread = 1.0
    think_s: Spread = 0.0
    system: str | None = None
    """A system message; the same in all sessions of the shape, so it is a shared prefix too."""
    prompt_words: Spread = 20.0
    prompt_texts: Annotated[list[str], Field(min_length=1)] | None = None
    """One of these is asked in place of made-up words."""
    shared_prefix_words: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Begin each session's first message with so many words that all sessions share."""
    max_tokens: Spread = 64.0
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    stop: Annotated[list[StopString], Field(max_length=4)] = Field(default_factory=list)
    request: dict[str, Any] = Field(default_factory=dict)
    """More fields of the request, as they are sent."""

    @field_validator("request")
    @classmethod
    def _only_others(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_SET_BY_US & fields.keys()):
            raise ValueError(f"may not hold {', '.join(taken)}: the generator sets it")
        try:
            validate_request({"prompt": "x", **fields})
        except RequestError as problem:
            raise ValueError(f"is refused: {problem}") from None
        return fields


_SHAPES = TypeAdapter(Annotated[list[Shape], Field(min_length=1, max_length=1000)])

BUILT_IN = {
    "chat": Shape(
        name="chat",
        turns=[1.0, 5.0],
        think_s=Exponential(kind="exponential", mean=3.0, max=30.0),
        system="You are a helpful assistant.",
        prompt_words=LogNormal(kind="lognormal", median=15.0, sigma=0.7, max=120.0),
        max_tokens=LogNormal(kind="lognormal", median=48.0, sigma=0.6, max=256.0),
        temperature=0.7,
    ),
    "long-prompt": Shape(
        name="long-prompt",
        prompt_words=LogNormal(kind="lognormal", median=600.0, sigma=0.4, max=1500.0),
        max_tokens=32.0,
    ),
    "one-shot": Shape(name="one-shot", prompt_words=[10.0, 40.0], max_tokens=64.0),
}
"""`chat` is the default: a few short turns, with time to read between them."""


def read_shapes(path: Path) -> list[Shape]:
    """The shapes in a file. Raises: ShapesError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ShapesError(f"{path}: larger than {MAX_FILE_BYTES // 2**20} MiB")
        data = path.read_bytes()
    except OSError as problem:
        raise ShapesError(f"{path}: {problem.strerror or problem}") from problem
    try:
        return parse_shapes(data)
    except ShapesError as problem:
        raise ShapesError(f"{path}: {problem}") from problem


def parse_shapes(data: bytes) -> list[Shape]:
    """The shapes in a file's bytes. Raises: ShapesError with the path of the field."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        text = f"line {problem.lineno}, column {problem.colno}: no JSON: {problem.msg}"
        raise ShapesError(text) from problem
    try:
        return _SHAPES.validate_python(body)
    except ValidationError as problem:
        found = refusal(problem, body)
        where = found.param or "the file"
        raise ShapesError(f"{where} {found.message}") from problem


def shapes_schema() -> dict[str, Any]:
    """The JSON schema of a shapes file."""
    return _SHAPES.json_schema()
