"""What was asked, what was answered and what broke, with the times of each: what a run is judged
by. Plain data, no I/O. Times are `time.monotonic()`.
"""

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headrace.schemas.reply import is_last
from tests.chaos.plan import FaultKind
from tests.pipeline import Reply

JOURNAL_LOSING = frozenset(
    {
        FaultKind.REDIS_RESTARTED,
        FaultKind.REDIS_FLUSHED,
        FaultKind.REDIS_PAUSED,
        FaultKind.REDIS_SLOW,
        FaultKind.REDIS_SILENT,
        FaultKind.REDIS_CUT,
        FaultKind.REDIS_FULL,
    }
)
"""Faults that empty Redis, or keep workers from it: answers may begin again after them."""

WORKER_LOSING = frozenset(
    {
        FaultKind.WORKER_KILLED,
        FaultKind.TWO_WORKERS_KILLED,
        FaultKind.WORKER_DRAINED,
        FaultKind.WORKER_ZOMBIE,
        FaultKind.WORKER_ZOMBIE_LONG,
        FaultKind.WORKER_JOINS,
        FaultKind.WORKER_LEAVES,
        FaultKind.DEADLY_REQUEST,
    }
)
KAFKA_AWAY = frozenset({FaultKind.KAFKA_RESTARTED, FaultKind.KAFKA_KILLED, FaultKind.KAFKA_PAUSED})

START_S = 60.0
"""How long before its end a worker that could not start may have met a fault."""

NOTICE_S = 3.0
"""How long after a fault of Redis a worker may still believe that it is away."""


class AskedKind(StrEnum):
    """What must become of a record."""

    ANSWER = "answer"
    POISON = "poison"
    DEADLY = "deadly"
    TOMBSTONE = "tombstone"
    NEVER = "never"
    """Of an aborted transaction."""


@dataclass
class WatchedReply(Reply):
    """A reply whose contradictions are noted, not raised, and what a reader does not look at."""

    finished_s: float | None = None
    contradictions: list[str] = field(default_factory=list)
    num_restarts: int = 0
    last_events: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Attempt → sequence number of its last event, and when it came."""

    def watch(self, event: dict[str, Any], pid: int) -> None:
        """Like `see`."""
        attempt, number = event["attempt"], event["sequence_number"]
        before = self.reader.attempt
        ended = self.last_events.get(attempt)
        if ended is not None and number > ended[0]:
            self.contradictions.append(f"{number} of attempt {attempt} comes after the last event")
        if is_last(event):
            self.last_events.setdefault(attempt, (number, time.monotonic()))
        try:
            self.see(event, pid)
        except AssertionError as problem:
            self.contradictions.append(str(problem).splitlines()[0])
        if before is not None and self.reader.attempt != before:
            self.num_restarts += 1
        if self.reader.finished and self.finished_s is None:
            self.finished_s = time.monotonic()


@dataclass(eq=False, slots=True)
class Asked:
    """One record of the request topic."""

    request_id: str
    session: str
    kind: AskedKind
    asked_s: float
    body: dict[str, Any] = field(default_factory=dict)
    value: bytes = b""
    reply: WatchedReply = field(default_factory=WatchedReply)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    order: int | None = None
    """Position of its last event among all; None: it has none."""
    cancelled: bool = False

    @property
    def life(self) -> tuple[float, float]:
        """From when it was asked to its visible last event."""
        return self.asked_s, self.reply.finished_s or time.monotonic()

    @property
    def error_code(self) -> str | None:
        """Of a `failed` event."""
        return self.reply.last["error"]["code"] if self.finished.is_set() and self.failed else None

    @property
    def failed(self) -> bool:
        return bool(self.reply.events) and self.reply.failed


@dataclass(slots=True)
class FaultRun:
    """One fault as it went: it strikes, it ends, and what it broke is there again."""

    number: int
    kind: FaultKind
    struck_s: float
    ended_s: float | None = None
    note: str = ""

    @property
    def window(self) -> tuple[float, float]:
        """From strike to end; while it has not ended, to now."""
        return self.struck_s, self.ended_s if self.ended_s is not None else time.monotonic()

    @property
    def own_s(self) -> float:
        """How long it lasted."""
        begin, end = self.window
        return end - begin

    def overlaps(self, begin_s: float, end_s: float, *, notice_s: float = 0.0) -> bool:
        begin, end = self.window
        return begin <= end_s and begin_s <= end + notice_s


@dataclass(slots=True)
class Problem:
    """One thing that must not be. `kind`: lost, doubled, different, out of order, …"""

    kind: str
    what: str
    about: str = ""
    begin_s: float = 0.0
    end_s: float = 0.0


class Book:
    """Everything of one run."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.asked: dict[str, Asked] = {}
        self.sessions: dict[str, list[Asked]] = {}
        self.faults: list[FaultRun] = []
        self.problems: list[Problem] = []
        self.dead_letters: list[tuple[bytes, dict[str, bytes]]] = []
        self.strays: set[str] = set()
        """Ids of answers that nobody asked for."""
        self.last_publisher: int | None = None
        """Process id of the worker that published the newest event."""
        self.num_asked_again = 0
        self.redis_max_bytes = 0

    def add(self, asked: Asked) -> Asked:
        """Note a record that is about to be, or was, produced."""
        self.asked[asked.request_id] = asked
        self.sessions.setdefault(asked.session, []).append(asked)
        return asked

    @property
    def answerable(self) -> list[Asked]:
        """Those that must have a last event."""
        never = (AskedKind.NEVER, AskedKind.TOMBSTONE)
        return [asked for asked in self.asked.values() if asked.kind not in never]

    @property
    def num_finished(self) -> int:
        return sum(asked.finished.is_set() for asked in self.answerable)

    def note(self, problem: Problem) -> None:
        """Something that must not be, now."""
        problem.begin_s = problem.begin_s or time.monotonic()
        problem.end_s = problem.end_s or problem.begin_s
        self.problems.append(problem)

    def services_away(self) -> list[FaultRun]:
        """The faults that may have kept a worker from starting just now."""
        now_s = time.monotonic()
        kinds = (*JOURNAL_LOSING, *KAFKA_AWAY)
        return [one for one in self.faults_over(now_s - START_S, now_s) if one.kind in kinds]

    def faults_over(self, begin_s: float, end_s: float, *, notice_s: float = 0.0) -> list[FaultRun]:
        """Those that overlap a time."""
        return [one for one in self.faults if one.overlaps(begin_s, end_s, notice_s=notice_s)]

    def worker_lost(self, begin_s: float, end_s: float) -> bool:
        """Whether a worker may have lost what it had in this time."""
        return any(one.kind in WORKER_LOSING for one in self.faults_over(begin_s, end_s))

    def journal_lost(self, begin_s: float, end_s: float) -> bool:
        """Whether a journal, or a conversation, may have been lost in this time."""
        found = self.faults_over(begin_s, end_s, notice_s=NOTICE_S)
        return any(one.kind in JOURNAL_LOSING for one in found)
