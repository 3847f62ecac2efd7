"""Which part of the request topic is meant: offsets, times, sessions, the last so many.

Owns how a part is written on a command line. Knows nothing of Kafka's client.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime

from headrace.consumers.range_reader import Span

_OFFSETS = re.compile("([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})?", re.ASCII)
_SPAN = re.compile("([0-9]{1,6})(s|m|h|d)( ago)?", re.ASCII)
_EPOCH_MS = re.compile("[0-9]{10,16}", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, both ends included; without a last one, all that can be read."""

    partition: int
    first: int
    last: int | None

    @classmethod
    def parse(cls, text: str) -> "OffsetRange":
        """`3:100-199`, or `3:100-`. Raises: ValueError."""
        found = _OFFSETS.fullmatch(text)
        if found is None:
            raise ValueError("is no range: write PARTITION:FROM-TO, as 3:100-199")
        partition, first = int(found[1]), int(found[2])
        last = int(found[3]) if found[3] is not None else None
        if last is not None and last < first:
            raise ValueError("ends before it begins")
        return cls(partition, first, last)


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the request topic; everything by default. Times are the epoch's, in ms: from
    `since_ms` on, up to but not at `until_ms`.
    """

    offsets: tuple[OffsetRange, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    sessions: frozenset[str] = field(default_factory=frozenset)
    last: int | None = None

    def limited(self, partition: int, readable: Span) -> list[Span]:
        """What the offsets leave of a partition; several ranges of one partition are united where
        they touch.
        """
        if not self.offsets:
            return [readable]
        wanted = [
            Span(
                max(readable.start, one.first),
                readable.end if one.last is None else min(readable.end, one.last + 1),
            )
            for one in self.offsets
            if one.partition == partition
        ]
        return _united([span for span in wanted if span.num_offsets])

    def has_session_of(self, key: bytes | None) -> bool:
        """Whether records with this key are meant."""
        return not self.sessions or (key or b"").decode("utf-8", "replace") in self.sessions


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds of the epoch: `1h ago`, an RFC 3339 time, or the number itself.

    Raises: ValueError.
    """
    if ago_s := span_s(text):
        return max(0, now_ms - ago_s * 1000)
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "is no time: write 2026-01-31T12:00:00Z, milliseconds since 1970, or 90s, 30m, 1h, 7d "
            "for so long ago"
        ) from None
    if found.tzinfo is None:
        raise ValueError("does not say its time zone: put Z for UTC, or +01:00, behind it")
    return max(0, int(found.timestamp() * 1000))


def span_s(text: str) -> int | None:
    """Seconds in `90s`, `30m`, `1h` or `7d`, with or without `ago`; None for anything else."""
    found = _SPAN.fullmatch(text.strip())
    return int(found[1]) * _SECONDS[found[2]] if found else None


def _united(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found
