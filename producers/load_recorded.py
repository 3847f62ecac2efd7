"""A load that was recorded: the requests of a dump, at the pace at which they came.

Sans I/O. Every request is due at its recorded time, whether or not the turn before it was answered.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.producers.load_arrivals import Arrival
from headrace.schemas.dump import DumpRecord
from headrace.schemas.errors import HeadraceError, RequestError
from headrace.schemas.request import session_of_key, validate_request
from headrace.schemas.strict_json import decode_object

MAX_BODY_BYTES = 512 * 2**20
"""Of all requests together: they are kept in memory, so that reading a file delays none."""

_OF_THE_RECORDING = ("request_id", "session_id", "tenant", "turn", "model")
"""Names that would refer to the pipeline that was recorded."""


class RecordingError(HeadraceError):
    """A dump that holds no load."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One recorded request; others of its conversation have the same `session_id`."""

    session_id: str
    content: dict[str, Any]
    num_turns: int = 1

    def body(self, turn: int) -> dict[str, Any]:
        """What was asked."""
        return self.content

    def think_s(self, turn: int) -> float:
        """There is no next turn."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Recording:
    """The requests of a dump in the order of their times, and how many records held none."""

    requests: list[tuple[int, bytes | None, dict[str, Any]]]
    num_skipped: int

    def arrivals(self, *, speed: float, run_id: str) -> Iterator[Arrival]:
        """Each request when it is due, the first at 0; `speed` 2 is twice as fast."""
        start_ms = self.requests[0][0]
        names: dict[bytes, str] = {}
        for number, (time_ms, key, content) in enumerate(self.requests):
            due_s = (time_ms - start_ms) / 1000 / speed
            name = f"{run_id}-r{number}" if not key else names.setdefault(key, f"{run_id}-{number}")
            yield Arrival(due_s, RecordedSession(name, content))


def read_recording(records: Iterable[DumpRecord]) -> Recording:
    """The requests among `records`. Raises: RecordingError where there are none, or too many."""
    found: list[tuple[int, bytes | None, dict[str, Any]]] = []
    num_skipped = num_bytes = 0
    for record in records:
        if record.kind != "request":
            continue
        content = _content(record)
        num_bytes += len(record.value or b"")
        if num_bytes > MAX_BODY_BYTES:
            raise RecordingError(f"the requests take more than {MAX_BODY_BYTES // 2**20} MiB")
        if content is None:
            num_skipped += 1
        else:
            found.append((record.timestamp_ms, record.key, content))
    if not found:
        raise RecordingError("holds no requests")
    found.sort(key=lambda one: one[0])  # stable: a session's order stays
    return Recording(found, num_skipped)


def _content(record: DumpRecord) -> dict[str, Any] | None:
    """The request as it is asked again; None for a tombstone and for what holds no request."""
    try:
        body = decode_object(record.value or b"")
        validate_request(body)
    except RequestError:
        return None
    content = {name: value for name, value in body.items() if name not in _OF_THE_RECORDING}
    if session_of_key(record.key) is None:  # we give it a session; it had none to go on with
        content.setdefault("context", "replace")
    return content
