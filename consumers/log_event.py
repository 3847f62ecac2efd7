"""One event of the response log, and what a reader wants of the log; deduplicates nothing."""

from dataclasses import dataclass
from typing import Any

import orjson

from headrace.consumers.cursor import Cursor
from headrace.schemas.event_shape import is_event
from headrace.schemas.headers import Headers, header_text
from headrace.schemas.request import DEFAULT_TENANT


@dataclass(slots=True)
class LogEvent:
    """An event at its place in the log, shared by all readers: never change it."""

    partition: int
    offset: int
    tenant: str
    key: bytes | None
    event: dict[str, Any]
    headers: Headers
    value: bytes = b"{}"
    """`event` as it was written."""
    frame: bytes | None = None
    """What WebSockets are sent, once `socket_frames.event_frame` has made it for one of them."""

    @property
    def num_bytes(self) -> int:
        return len(self.value)

    @property
    def cursor(self) -> str:
        """Where to go on after this event; opaque, URL safe."""
        return str(Cursor(self.partition, self.offset))

    @property
    def request_id(self) -> str:
        return str(self.event["id"])

    @property
    def session_id(self) -> str:
        return str(self.event["session_id"])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a reader wants: those of a tenant's session, request, or request in a
    session.
    """

    tenant: str
    session_id: str | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        if self.session_id is None and self.request_id is None:
            raise ValueError("a session or a request is needed")

    def accepts(self, event: LogEvent) -> bool:
        """Whether `event` is one of them."""
        return (
            event.tenant == self.tenant
            and self.session_id in (None, event.event["session_id"])
            and self.request_id in (None, event.event["id"])
        )


def decode_event(record: Any) -> LogEvent | None:
    """The event in an aiokafka `record`; None where it holds none that a reader could follow."""
    try:
        event = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError:
        return None
    if not is_event(event):
        return None
    headers = tuple(record.headers or ())
    return LogEvent(
        partition=record.partition,
        offset=record.offset,
        tenant=header_text(headers, "headrace-tenant") or DEFAULT_TENANT,
        key=record.key,
        event=event,
        headers=headers,
        value=record.value,
    )
