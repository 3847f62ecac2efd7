"""CloudEvents 1.0 (binary mode) and W3C trace context as Kafka headers.

A header with a null or broken value is ignored, never fatal.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

Headers = Sequence[tuple[str, bytes | None]]

TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
_TRACE_MAX_BYTES = 8192
"""W3C's own limit of `baggage`; a longer value would be copied into every event."""


class EventType(StrEnum):
    """`ce_type` of every record that we write or read."""

    REQUESTED = "headrace.generation.requested.v1"
    CHUNK = "headrace.generation.chunk.v1"
    COMPLETED = "headrace.generation.completed.v1"
    FAILED = "headrace.generation.failed.v1"
    CONTROL = "headrace.control.v1"


def header_text(headers: Headers, name: str) -> str | None:
    """The last usable value of `name` (Kafka allows several), or None."""
    for found, value in reversed(headers):
        if found == name and value:
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                continue
    return None


def cloud_event_headers(
    kind: EventType, *, event_id: str, source: str, subject: str, time_s: float
) -> list[tuple[str, bytes]]:
    """The CloudEvents attributes of a record; `subject` is the session id, `time_s` the epoch."""
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": event_id,
        "ce_type": kind.value,
        "ce_source": source,
        "ce_subject": subject,
        "ce_time": datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z"),
        "content-type": "application/json",
    }
    return [(name, value.encode("utf-8")) for name, value in attributes.items()]


def trace_headers(headers: Headers) -> list[tuple[str, bytes]]:
    """What a response event hands on of its request's trace context."""
    found = ((name, (header_text(headers, name) or "").encode("utf-8")) for name in TRACE_HEADERS)
    return [(name, value) for name, value in found if 0 < len(value) <= _TRACE_MAX_BYTES]
