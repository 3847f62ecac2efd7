"""The shapes of the frames that `/v1/stream` sends (contract §8), for its document.

They are written where they are sent; tests hold what is sent against these.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from headrace.consumers.openai_answers import ErrorBody


class AcceptedFrame(TypedDict):
    """A `generate` was produced; its events follow on this socket."""

    type: Literal["accepted"]
    request_id: str
    session_id: str


class EventFrame(TypedDict):
    """An event, and the cursor to go on after it at any gateway."""

    type: Literal["event"]
    cursor: str
    event: dict[str, Any]
    worker: NotRequired[str]


class ErrorFrame(TypedDict):
    """A frame was refused, or what was followed broke off; names what it was about."""

    type: Literal["error"]
    error: ErrorBody
    request_id: NotRequired[str]
    session_id: NotRequired[str]


class PongFrame(TypedDict):
    """The answer to a `ping`."""

    type: Literal["pong"]


SERVER_FRAMES: dict[str, type] = {
    "accepted": AcceptedFrame,
    "event": EventFrame,
    "error": ErrorFrame,
    "pong": PongFrame,
}
