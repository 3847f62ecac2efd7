"""The newest part of the response log, kept in memory: what most readers of the past want.

Sans I/O. Of each partition it holds every event from `start` up to what the live reader has handed
on, within a share of the bytes, found by session and by request, so that a reader costs what it is
given. An event is kept as it stands in the log (a fifth of its decoded size).

    offset     0              start                  position of the live reader
               | in Kafka only | kept here, complete | not read yet
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.consumers.log_event import LogEvent, Wanted
from headrace.schemas.headers import Headers
from headrace.schemas.reply import is_last

OVERHEAD_BYTES = 300
"""What an event costs beside its value: objects, places in the index (CPython 3.11, measured)."""

_DROPPED_PART = 8
"""A line is moved together once this part of it was dropped: what is dropped is freed, at the cost
of moving eight places for each record.
"""

MAX_UNFINISHED = 1_000
"""Names by partition: answers whose writer has paused for longer than the recent log reaches."""

_KEPT_HEADERS = "headrace-"
"""Only ours mean something to a reader; the CloudEvents ones are as large as the event."""

Name = tuple[str, str]
"""Tenant, and session or request id."""


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record as it stood in the log, less foreign headers: `decode_event` takes it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: Headers
    session: Name
    request: Name
    number: int
    """The event's sequence number."""
    is_last: bool
    """Whether it ends its attempt."""
    seen_ms: int
    """When this gateway read it, in milliseconds of the epoch."""

    @property
    def num_bytes(self) -> int:
        return len(self.value) + OVERHEAD_BYTES


class _Line:
    """Records in offset order; the oldest leave first."""

    __slots__ = ("_head", "_records", "is_whole")

    def __init__(self, *, is_whole: bool = True) -> None:
        self._records: list[KeptRecord] = []
        self._head = 0
        self.is_whole = is_whole
        """Whether none of its records was dropped."""

    def __len__(self) -> int:
        return len(self._records) - self._head

    @property
    def first(self) -> KeptRecord:
        return self._records[self._head]

    @property
    def last(self) -> KeptRecord:
        return self._records[-1]

    def append(self, record: KeptRecord) -> None:
        self._records.append(record)

    def drop_first(self) -> None:
        self.is_whole = False
        self._head += 1
        if self._head * _DROPPED_PART >= len(self._records):
            del self._records[: self._head]
            self._head = 0

    def between(self, start: int, end: int) -> Iterable[KeptRecord]:
        """Those at offsets in [start, end), one after the other."""
        place = bisect_left(self._records, start, lo=self._head, key=lambda one: one.offset)
        while place < len(self._records) and self._records[place].offset < end:
            yield self._records[place]
            place += 1


class _Partition:
    """The kept records of one partition."""

    def __init__(self, start: int, since_ms: int) -> None:
        self.start, self.since_ms = start, since_ms
        self.num_bytes = 0
        self.records: deque[KeptRecord] = deque()
        self.sessions: dict[Name, _Line] = {}
        self.requests: dict[Name, _Line] = {}
        self._unfinished: OrderedDict[Name, None] = OrderedDict()
        """Requests of which the newest record was dropped, and it was not their last."""

    def line(self, wanted: Wanted) -> _Line | None:
        """What may be wanted, or None where nothing is."""
        if wanted.request_id is not None:
            return self.requests.get((wanted.tenant, wanted.request_id))
        return self.sessions.get((wanted.tenant, wanted.session_id or ""))

    def add(self, record: KeptRecord) -> None:
        self.records.append(record)
        self.num_bytes += record.num_bytes
        self.sessions.setdefault(record.session, _Line()).append(record)
        if (line := self.requests.get(record.request)) is None:
            line = self.requests[record.request] = _Line(
                is_whole=record.request not in self._unfinished
            )
            self._unfinished.pop(record.request, None)
        line.append(record)

    def drop_first(self) -> None:
        record = self.records.popleft()
        self.start, self.since_ms = record.offset + 1, record.seen_ms
        self.num_bytes -= record.num_bytes
        _drop_from(self.sessions, record.session)
        _drop_from(self.requests, record.request)
        if record.request not in self.requests and not record.is_last:
            self._unfinished[record.request] = None
            if len(self._unfinished) > MAX_UNFINISHED:
                self._unfinished.popitem(last=False)


class RecentLog:
    """The kept records of all partitions; `max_bytes` are shared evenly among them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._partitions: dict[int, _Partition] = {}

    @property
    def num_bytes(self) -> int:
        """What is held now, overhead included."""
        return sum(one.num_bytes for one in self._partitions.values())

    def reach_s(self, now_ms: int) -> float:
        """Since when everything is here, in the partition where that is least."""
        since_ms = max((one.since_ms for one in self._partitions.values()), default=now_ms)
        return max(0, now_ms - since_ms) / 1000

    def begin(self, partition: int, offset: int, *, now_ms: int) -> None:
        """Keep what comes from `offset` on; what was kept of the partition is forgotten."""
        self._partitions[partition] = _Partition(offset, now_ms)

    def add(self, record: Any, event: LogEvent, *, now_ms: int) -> None:
        """Keep the next event of its partition, and let go of the oldest where that is too much."""
        one = self._partitions[event.partition]
        one.add(_kept(one, record, event, now_ms))
        share = self._max_bytes // len(self._partitions)
        while one.num_bytes > share:
            one.drop_first()

    def cut(self, partition: int, start: int) -> None:
        """Let go of what stands before `start`: the log has it no more."""
        one = self._partitions[partition]
        while one.records and one.records[0].offset < start:
            one.drop_first()
        one.start = max(one.start, start)

    def covers(self, partition: int, offset: int) -> bool:
        """Whether every event from `offset` on is here."""
        one = self._partitions.get(partition)
        return one is not None and one.start <= offset

    def start(self, partition: int) -> int:
        """The first offset from which on every event is here."""
        return self._partitions[partition].start

    def covers_since(self, partition: int, time_ms: int) -> bool:
        """Whether every event that was written after `time_ms`, by this machine's clock, is
        here.
        """
        one = self._partitions.get(partition)
        return one is not None and one.since_ms <= time_ms

    def has_whole(self, wanted: Wanted, partitions: Iterable[int]) -> bool:
        """Whether a wanted request is here from its first event on, and none of it was dropped.

        NOTE: of an attempt before it, lost with its journal before this gateway started, nothing is
        known here. A reader with a cursor does not depend on that.
        """
        if wanted.request_id is None:
            return False
        lines = [self._partitions[partition].line(wanted) for partition in partitions]
        found = [line for line in lines if line is not None]
        return bool(found) and all(line.is_whole and line.first.number == 0 for line in found)

    def take(
        self, wanted: Wanted, partition: int, start: int, end: int, *, limit: int
    ) -> tuple[list[KeptRecord], int]:
        """Up to `limit` wanted records in [start, end), and the offset to go on at.

        The partition has to cover `start`, and to have been added to up to `end`.
        """
        line = self._partitions[partition].line(wanted)
        session = wanted.session_id
        found: list[KeptRecord] = []
        for record in line.between(start, end) if line is not None else ():
            if len(found) == limit:
                return found, record.offset
            if session in (None, record.session[1]):
                found.append(record)
        return found, end


def _kept(one: _Partition, record: Any, event: LogEvent, now_ms: int) -> KeptRecord:
    """What is the same in all events of a request is held once."""
    headers = tuple(item for item in event.headers if item[0].startswith(_KEPT_HEADERS))
    session, request = (event.tenant, event.session_id), (event.tenant, event.request_id)
    key = event.key
    line = one.requests.get(request)
    if line is not None:
        last = line.last
        request = last.request
        session = last.session if last.session == session else session
        headers = last.headers if last.headers == headers else headers
        key = last.key if last.key == key else key
    return KeptRecord(
        partition=event.partition,
        offset=event.offset,
        key=key,
        value=record.value,
        headers=headers,
        session=session,
        request=request,
        number=event.event["sequence_number"],
        is_last=is_last(event.event),
        seen_ms=now_ms,
    )


def _drop_from(lines: dict[Name, _Line], name: Name) -> None:
    line = lines[name]
    line.drop_first()
    if not line:
        del lines[name]
