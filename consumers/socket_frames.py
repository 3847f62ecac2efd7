"""The frames of `/v1/stream` that clients send (contract §8), checked."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request import Identifier
from headrace.schemas.strict_json import decode_object


class _Frame(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Generate(_Frame):
    """Produce a request; `body` is the whole frame and is checked as a request."""

    type: Literal["generate"]


class Subscribe(_Frame):
    """Follow a session or a request. A request without a place is followed from its start."""

    type: Literal["subscribe"]
    session_id: Identifier | None = None
    request_id: Identifier | None = None
    starting_after: Annotated[int, Field(ge=-1, lt=2**53)] | None = None
    cursor: Annotated[str, Field(max_length=100)] | None = None

    @model_validator(mode="after")
    def _clear(self) -> "Subscribe":
        if self.session_id is None and self.request_id is None:
            raise ValueError("session_id or request_id is needed")
        if self.cursor is not None and self.starting_after is not None:
            raise ValueError("cursor and starting_after exclude each other")
        return self


class CancelFrame(_Frame):
    """Cancel a request; its own id is its session where none is given."""

    type: Literal["cancel"]
    request_id: Identifier
    session_id: Identifier | None = None


class Ping(_Frame):
    """Answered with `pong`."""

    type: Literal["ping"]


Frame = Generate | Subscribe | CancelFrame | Ping
_ADAPTER: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])


def decode_frame(data: bytes) -> tuple[Frame, dict[str, Any]]:
    """The frame and the object that it came in. Raises: RequestError, with the name that is
    wrong.
    """
    body = {name: value for name, value in decode_object(data).items() if value is not None}
    try:
        return _ADAPTER.validate_python(body), body
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        path = [str(part) for part in first["loc"] if part != body.get("type")]
        raise RequestError(
            ErrorCode.INVALID_VALUE, first["msg"], ".".join(path) or "type"
        ) from problem
