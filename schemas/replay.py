"""The headers of a replayed record: which replay it belongs to, and where the original lies.

Owns how they are written and read. A replayed record keeps the key, value and headers of its
original; these are added. Does not know what a replay is for.
"""

import re
from dataclasses import dataclass

from headrace.schemas.headers import Headers, header_text

REPLAY_ID_HEADER = "headrace-replay-id"
REPLAY_SOURCE_HEADER = "headrace-replay-source"
"""`<topic>-<partition>-<offset>` of the original."""
REPLAY_TIMESTAMP_HEADER = "headrace-replay-timestamp"
"""The original's timestamp in milliseconds; the record's own is the time of the replay."""

_SOURCE = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,9})-([0-9]{1,18})", re.ASCII)
_TIMESTAMP = re.compile("-1|[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request was first written. Its default id and default seed come from this place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def default_id(self) -> str:
        """The id of a request that names none."""
        return f"{self.topic}-{self.partition}-{self.offset}"

    @property
    def source(self) -> str:
        """The place and its time: a topic that is made anew counts its offsets from 0 again."""
        return f"{self.topic}/{self.partition}/{self.offset}/{self.timestamp_ms}"


def replayed_origin(headers: Headers, timestamp_ms: int) -> Origin | None:
    """The original's place that `headers` name; None where they name none, or not readably.

    `timestamp_ms` stands in for a time that is missing or broken.
    """
    source = _SOURCE.fullmatch(header_text(headers, REPLAY_SOURCE_HEADER) or "")
    if source is None:
        return None
    time_text = header_text(headers, REPLAY_TIMESTAMP_HEADER) or ""
    original_ms = int(time_text) if _TIMESTAMP.fullmatch(time_text) else timestamp_ms
    return Origin(source[1], int(source[2]), int(source[3]), original_ms)


def replay_headers(replay_id: str, origin: Origin) -> list[tuple[str, bytes]]:
    """What is added to the headers of a record that was first written at `origin`."""
    texts = {
        REPLAY_ID_HEADER: replay_id,
        REPLAY_SOURCE_HEADER: origin.default_id,
        REPLAY_TIMESTAMP_HEADER: str(origin.timestamp_ms),
    }
    return [(name, text.encode("utf-8")) for name, text in texts.items()]
