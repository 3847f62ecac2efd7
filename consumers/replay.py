"""The past of the response log for one reader: what it wants, from a start to a moving target.

Takes them from memory where the recent log has them, else from the shared reading of Kafka.
[start, target) is read here, [target, ∞) comes live, so nothing is missed or repeated. Holds a
bounded number of events: a reader that does not take them is read for later.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from headrace.consumers.cursor import resume_gap
from headrace.consumers.log_event import LogEvent, Wanted, decode_event
from headrace.consumers.recent_log import RecentLog
from headrace.consumers.shared_past import SharedPast
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError

MAX_EVENTS = 256
MAX_BYTES = 256 * 1024
"""Held for a reader, decoded: 1 MB at worst. As many as one step of the reading may bring."""

STALL_TIMEOUT_S = 30.0
"""Without a step forward for this long, the brokers do not answer or too many are before us."""


class LogReplay:
    """Reads [start, target) of some partitions, in offset order within each.

    NOTE: `targets` only grows, and is looked at anew all the time.
    """

    def __init__(
        self,
        wanted: Wanted,
        starts: Sequence[Mapping[int, int]],
        targets: Mapping[int, int],
        recent: RecentLog,
        past: SharedPast,
        *,
        patience_s: float = 0.0,
    ) -> None:
        """`starts`: the first one is where to begin; the others are further back, each for the case
        that the wanted request does not begin behind the one before. `patience_s`: how long a live
        event is waited for, which would make it needless to read from Kafka.
        """
        self.wanted = wanted
        self.next_offset, *further_back = map(dict, starts)
        self._further_back = deque(further_back)
        self._targets, self._recent, self._past = targets, recent, past
        self._found: deque[LogEvent] = deque()
        self._found_bytes = 0
        self._noticed = asyncio.Event()
        self._problem: Exception | None = None
        self._patience_s = patience_s

    async def stop(self) -> None:
        """Free what it holds. Safe to call twice."""
        self._past.leave(self)
        self._found.clear()

    async def event_at(self, partition: int) -> LogEvent:
        """The event right at the start, which is not handed out any more.

        Raises: RequestError `resume_gap` where none that is wanted stands there; UnavailableError.
        """
        start = self.next_offset[partition]
        await self._read_until(lambda: self.next_offset[partition] > start)
        if not self._found or self._found[0].offset != start:
            raise resume_gap("the cursor is no event of this session or request")
        return self._pop()

    async def next(self) -> LogEvent | None:
        """The next wanted event, or None once every partition has reached its target.

        Raises: RequestError `resume_gap` if the log was cut while it was read, `overloaded` if it
            waits for its turn too long; UnavailableError.
        Cancel: safe, the events that were read stay for the next call.
        """
        if not self._found:
            await self._read_until(self._is_next_known)
        return self._pop() if self._found else None

    def _is_next_known(self) -> bool:
        if not self._found and self._recent.has_whole(self.wanted, self.next_offset):
            self._further_back.clear()
            self._past.leave(self)
            for number in self.next_offset:  # nothing before it is wanted
                start = min(self._recent.start(number), self._targets[number])
                self.next_offset[number] = max(start, self.next_offset[number])
            self._take_recent()
        if self._found or not self._behind():
            self._look_further_back()
        return bool(self._found) or not self._behind()

    def _look_further_back(self) -> None:
        """Begin anew at an earlier start, unless this one was early enough."""
        if self._found and self._found[0].event["sequence_number"] == 0:
            self._further_back.clear()
        if not self._further_back:
            return
        self._past.leave(self)
        self._found.clear()
        self._found_bytes = 0
        self.next_offset = self._further_back.popleft()
        self._take_recent()

    def _pop(self) -> LogEvent:
        event = self._found.popleft()
        self._found_bytes -= event.num_bytes
        return event

    def _behind(self) -> list[int]:
        return [
            number for number, offset in self.next_offset.items() if offset < self._targets[number]
        ]

    async def _read_until(self, is_done: Callable[[], bool]) -> None:
        while True:
            if self._problem is not None:
                raise self._problem
            self._take_recent()
            if is_done():
                return
            self._noticed.clear()
            patience_s, self._patience_s = self._patience_s, 0.0
            if patience_s and await self._comes_live(patience_s):
                continue
            self._past.join(self)
            await self._wait()

    async def _comes_live(self, patience_s: float) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                return await self._noticed.wait()
        except TimeoutError:
            return False

    async def _wait(self) -> None:
        while not self._noticed.is_set():
            before, num_records = dict(self.next_offset), self._past.num_records
            try:
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    await self._noticed.wait()
            except TimeoutError:
                if self.next_offset != before:
                    continue
                if self._past.num_records > num_records:
                    text = "too many readers of the past at once; try again"
                    raise RequestError(ErrorCode.OVERLOADED, text) from None
                raise UnavailableError("Kafka (replay)", STALL_TIMEOUT_S) from None

    def _take_recent(self) -> None:
        for number in self._behind():
            offset = self.next_offset[number]
            room = MAX_EVENTS - len(self._found)
            if room <= 0 or not self._recent.covers(number, offset):
                continue
            kept, self.next_offset[number] = self._recent.take(
                self.wanted, number, offset, self._targets[number], limit=room
            )
            for event in map(decode_event, kept):
                if event is not None:
                    self.take(event)

    # --- what the shared past asks and gives

    def wants_until(self, partition: int) -> int:
        """The target, or where the recent log begins if that is nearer."""
        return min(self._targets[partition], self._recent.start(partition))

    def take(self, event: LogEvent) -> bool:
        """Hold `event` for `next`; False where that is enough for now."""
        self._found.append(event)
        self._found_bytes += event.num_bytes
        return len(self._found) < MAX_EVENTS and self._found_bytes < MAX_BYTES

    def notice(self, problem: Exception | None = None) -> None:
        """Wake the reader up: there are events, one came live, it is at an end, or `problem` ends
        it.
        """
        self._problem = self._problem or problem
        self._noticed.set()
