"""The frames of `/v1/stream` (contract §8): clients', checked, and the bytes of ours."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode

from headrace.consumers.log_event import LogEvent
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.headers import header_text
from headrace.schemas.request import Identifier
from headrace.schemas.strict_json import decode_object


class _Frame(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Generate(_Frame):
    """Produce a request; `body` is the whole frame and is checked as a request."""

    type: Literal["generate"]


def _given(**kinds: str) -> dict[str, Any]:
    """A JSON schema: these fields are there, and not null."""
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    return {"properties": properties, "required": list(properties)}


class Subscribe(_Frame):
    """Follow a session or a request. A request without a place is followed from its start."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [_given(session_id="string"), _given(request_id="string")],
            "not": _given(cursor="string", starting_after="integer"),
        }
    )

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


def text_frame(payload: bytes) -> bytes:
    """A whole text frame as it goes over the wire: ours are the same for every client."""
    return WireFrame(Opcode.TEXT, payload).serialize(mask=False)


def event_frame(event: LogEvent) -> bytes:
    """The frame of an event, made once for all sockets; the event as its worker wrote it."""
    if event.frame is None:
        payload = b'{"type":"event","cursor":"%b","event":%b' % (
            event.cursor.encode(),
            event.value,
        )
        worker = header_text(event.headers, "headrace-worker")
        if worker is not None:  # beside the event: its content is the same from every worker
            payload += b',"worker":' + orjson.dumps(worker)
        event.frame = text_frame(payload + b"}")
    return event.frame
