"""What stands between the group's committed offsets and the ends: counted record by record.

Plain state, no I/O, no clock. It is told the offsets and every record that is read, and forgets
what is committed. Only records count: transaction markers and aborted records take up offsets, too.

    offset     40        45            52                  60
    state      start     floor         read_to             end
                         |-- remembered --|-- by offsets --|

`floor` is where a worker goes on that gets the partition now.
"""

from collections import Counter, deque
from typing import NamedTuple

from headrace.consumers.lag_work import Work, expected_work

MAX_REMEMBERED = 100_000
"""Records over all partitions: some 20 MB. Behind them offsets are counted, markers included, and
their tokens taken from the mean of those that are remembered.
"""

RESERVED = 10
"""So many each partition may always have, or the age of its oldest would not be known."""

Place = tuple[str, int]
"""Topic and partition number."""


class Figures(NamedTuple):
    """How far one partition is behind; units as in `PartitionLag`."""

    records: int
    seconds: float
    tokens: int


def floor_of(committed: int | None, start: int, end: int, high_water: int | None = None) -> int:
    """Where the group goes on: the committed offset, or the log's start where there is none, where
    it was deleted since, or where it lies beyond the log (a topic made anew).

    [start, end) can be read; `high_water` is behind open transactions, too, None if unknown: an
    offset up to there is one of this log, and nothing before it is left to do.
    """
    if committed is None or committed < start:
        return start
    if committed <= end:
        return committed
    return end if high_water is not None and committed <= high_water else start


class _Unfinished(NamedTuple):
    offset: int
    timestamp_ms: int
    work: Work


class PartitionBacklog:
    """One partition's unfinished records, in order, as far as they were read."""

    def __init__(self, floor: int) -> None:
        self.read_to = floor
        """The next offset to read."""
        self.end = floor
        self.is_unreadable = False
        """A record stands there that the client library cannot read: no use to try again."""
        self._floor = floor
        self._records: deque[_Unfinished] = deque()
        self._prompt_tokens = 0
        self._limits: Counter[int] = Counter()
        self._behind_since_ms: int | None = None

    @property
    def num_remembered(self) -> int:
        return len(self._records)

    @property
    def is_behind(self) -> bool:
        """Whether there is something to read."""
        return self.read_to < self.end and not self.is_unreadable

    def is_other_log(self, end: int) -> bool:
        """Whether a log that ends at `end` is another than the one that was read: it is shorter."""
        return end < self.read_to

    def move(self, floor: int, end: int) -> bool:
        """Note where the group and the log are now; True: reading goes on at another `read_to`."""
        read_to = self.read_to
        if floor < self._floor or self.is_other_log(end):
            self._forget()
            self.read_to = floor
        if floor != self._floor:
            self.is_unreadable, self._behind_since_ms = False, None
        self._floor, self.end = floor, end
        while self._records and self._records[0].offset < floor:
            self._drop()
        self.read_to = max(self.read_to, floor)
        return self.read_to != read_to

    def add(self, offset: int, timestamp_ms: int, work: Work) -> None:
        """Take the next record; one that was taken already changes nothing."""
        if offset < self.read_to:
            return
        self._records.append(_Unfinished(offset, timestamp_ms, work))
        self._prompt_tokens += work.prompt_tokens
        self._limits[work.max_tokens] += 1
        self.reach(offset + 1)

    def reach(self, offset: int) -> None:
        """Note that no other record stands before `offset`."""
        self.read_to = max(self.read_to, offset)
        self.end = max(self.end, self.read_to)

    def restart(self, floor: int) -> None:
        """What was read is not there any more: begin anew at `floor`."""
        self._forget()
        self.read_to = self._floor = floor
        self.end = max(self.end, floor)

    def known_tokens(self, expected: float) -> float:
        """The work of the remembered records."""
        return expected_work(self._prompt_tokens, self._limits.items(), expected)

    def figures(self, expected: float, unread_mean: float, now_ms: int) -> Figures:
        """`expected` tokens of an answer; `unread_mean`: work of a record that was not read."""
        num_unread = max(0, self.end - self.read_to)
        records = self.num_remembered + num_unread
        tokens = self.known_tokens(expected) + num_unread * unread_mean
        return Figures(records, self._age_s(records, now_ms), round(tokens))

    def _age_s(self, records: int, now_ms: int) -> float:
        if not records:
            self._behind_since_ms = None
            return 0.0
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        first_ms = self._records[0].timestamp_ms if self._records else -1
        # -1: it has none; 0: a producer that sets none, and not one of 1970
        known_ms = first_ms if first_ms > 0 else self._behind_since_ms
        return max(0, now_ms - known_ms) / 1000  # a producer's clock may be ahead

    def _drop(self) -> None:
        work = self._records.popleft().work
        self._prompt_tokens -= work.prompt_tokens
        self._limits[work.max_tokens] -= 1
        if not self._limits[work.max_tokens]:
            del self._limits[work.max_tokens]

    def _forget(self) -> None:
        self._records.clear()
        self._limits.clear()
        self._prompt_tokens = 0


class Backlog:
    """All partitions, within one bound. `max_remembered` and `reserved`: see the constants."""

    def __init__(self, *, max_remembered: int = MAX_REMEMBERED, reserved: int = RESERVED) -> None:
        self._max_remembered, self._reserved = max_remembered, reserved
        self._partitions: dict[Place, PartitionBacklog] = {}

    @property
    def num_remembered(self) -> int:
        return sum(one.num_remembered for one in self._partitions.values())

    def at(self, place: Place, floor: int) -> PartitionBacklog:
        """The partition's backlog; a new one begins at `floor`."""
        return self._partitions.setdefault(place, PartitionBacklog(floor))

    def get(self, place: Place) -> PartitionBacklog:
        """The partition's backlog. Raises: KeyError for one that `at` was not asked for."""
        return self._partitions[place]

    def forget(self, place: Place) -> None:
        """A partition that is there no more."""
        self._partitions.pop(place, None)

    def clear(self) -> None:
        """Forget everything."""
        self._partitions.clear()

    def with_room(self) -> set[Place]:
        """Partitions that may be read on now."""
        is_full = self.num_remembered >= self._max_remembered
        return {
            place
            for place, one in self._partitions.items()
            if not one.is_unreadable and (not is_full or one.num_remembered < self._reserved)
        }

    def behind(self) -> set[Place]:
        """Those with room where there is something to read."""
        return {place for place in self.with_room() if self._partitions[place].is_behind}

    def figures(self, expected: float, now_ms: int) -> dict[Place, Figures]:
        """How far each is behind at `now_ms` of the epoch, if answers have `expected` tokens."""
        means = {topic: self._mean(topic, expected) for topic in {t for t, _ in self._partitions}}
        return {
            place: one.figures(expected, means[place[0]], now_ms)
            for place, one in self._partitions.items()
        }

    def _mean(self, topic: str, expected: float) -> float:
        """Work of a record of `topic`, from those that are remembered."""
        ones = [one for place, one in self._partitions.items() if place[0] == topic]
        num_known = sum(one.num_remembered for one in ones)
        if not num_known:
            return expected
        return sum(one.known_tokens(expected) for one in ones) / num_known
