"""Which records are taken and unfinished, and up to where a partition may be committed.

Plain state, no I/O. Knows nothing of requests; it must be told of every record taken.

    offset     40        41        42      43        44     45     46        47
    state      finished  finished  open    finished  hole   hole   finished  not taken
    watermark                      ^ 42, the lowest offset that is open or in a hole

A hole is what was jumped over: transaction markers and aborted records, or records that were
fetched and thrown away before they came here. It holds the watermark until somebody has looked
(`gaps.py`). With nothing open the watermark is the offset after the last record taken: never the
consumer's position, because records that were fetched but not yet taken lie below that one.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """Where a record stands: topic and partition number."""

    topic: str
    partition: int


class Watermark(NamedTuple):
    """What the group knows of a partition: the next offset to read, and the newest fencing token
    of a request partition, 0 where none is known. So tokens grow also when Redis has lost them.
    """

    offset: int
    token: int = 0


Gap = tuple[int, int]
"""Offsets [start, end)."""


@dataclass(slots=True)
class _Partition:
    open: dict[int, float] = field(default_factory=dict)  # offset -> when it was taken, monotonic s
    given_back: set[int] = field(default_factory=set)  # those behind them wait: order
    finished: set[int] = field(default_factory=set)  # above the watermark, so not committed yet
    holes: list[Gap] = field(default_factory=list)
    first_offset: int | None = None
    next_offset: int | None = None  # after everything that was taken or found empty
    committed: int | None = None  # None: not known where to begin, so nothing may be committed

    def watermark(self) -> int:
        """The lowest offset that is open or in a hole, else the one after all that was taken."""
        unfinished = [*self.open, *(start for start, _ in self.holes)]
        return min(unfinished, default=self.next_offset or 0)


class AckLedger:
    """The open records of the partitions that this process owns."""

    def __init__(self) -> None:
        self._partitions: dict[Place, _Partition] = {}

    def begin(self, place: Place, committed: int) -> None:
        """Note what the group has committed at an assignment; for a kept partition too.

        Records may have been taken before; what lies between is a hole.
        """
        partition = self._partitions.setdefault(place, _Partition())
        if partition.committed is None:
            if partition.first_offset is None:
                partition.next_offset = partition.first_offset = committed
            elif committed < partition.first_offset:
                partition.holes.insert(0, (committed, partition.first_offset))
        partition.committed = max(partition.committed or 0, committed)
        self.fill(place, (0, committed))

    def has_begun(self, place: Place) -> bool:
        partition = self._partitions.get(place)
        return partition is not None and partition.committed is not None

    def take(self, place: Place, offset: int, now_s: float) -> bool:
        """Note a record as open. False: it is open or finished already, and was read again after a
        rebalance; or one before it was given back, and must be taken first.
        """
        partition = self._partitions.setdefault(place, _Partition())
        if offset in partition.open or offset in partition.finished:
            return False
        first = partition.first_offset
        if first is not None and first <= offset < partition.watermark():
            return False  # finished, and not committed yet
        if any(one < offset for one in partition.given_back):
            return False
        partition.given_back.discard(offset)
        if partition.next_offset is None:
            partition.first_offset = offset
        elif offset > partition.next_offset:
            partition.holes.append((partition.next_offset, offset))
        partition.open[offset] = now_s
        partition.next_offset = max(partition.next_offset or 0, offset + 1)
        partition.holes = _without(partition.holes, (offset, offset + 1))
        return True

    def is_open(self, place: Place, offset: int) -> bool:
        """False as well when the partition was lost meanwhile: then the record is not ours."""
        partition = self._partitions.get(place)
        return partition is not None and offset in partition.open

    def finish(self, place: Place, offset: int) -> None:
        """Note a record as done with; of a partition that was lost, nothing is noted."""
        partition = self._partitions.get(place)
        if partition is not None and partition.open.pop(offset, None) is not None:
            partition.finished.add(offset)
            watermark = partition.watermark()
            partition.finished = {one for one in partition.finished if one >= watermark}

    def give_back(self, place: Place, offset: int) -> None:
        """Note an open record as not taken after all: a hole, which is read again."""
        partition = self._partitions.get(place)
        if partition is not None and partition.open.pop(offset, None) is not None:
            partition.holes.append((offset, offset + 1))
            partition.given_back.add(offset)

    def keep_only(self, places: Collection[Place]) -> list[tuple[Place, int]]:
        """Forget every other partition; returns their open records, which another worker redoes."""
        lost = [place for place in self._partitions if place not in places]
        return [(place, offset) for place in lost for offset in self._partitions.pop(place).open]

    def gaps(self, place: Place, end: int) -> list[Gap]:
        """What may be empty or may have been lost on the way: the holes, and what lies between the
        last record taken and the partition's end.
        """
        partition = self._partitions.get(place)
        if partition is None or partition.committed is None or partition.next_offset is None:
            return []
        tail = (partition.next_offset, end)
        return [*partition.holes, tail] if tail[0] < end else list(partition.holes)

    def fill(self, place: Place, empty: Gap) -> None:
        """Note that no record stands in `empty`."""
        partition = self._partitions.get(place)
        if partition is None:
            return
        partition.holes = _without(partition.holes, empty)
        start, end = empty
        partition.given_back = {one for one in partition.given_back if not start <= one < end}
        if partition.next_offset is not None and start <= partition.next_offset < end:
            partition.next_offset = end

    def watermarks(self) -> dict[Place, int]:
        """What may be committed now and was not yet: per partition, the next offset to read."""
        due = {}
        for place, partition in self._partitions.items():
            if partition.committed is None or partition.next_offset is None:
                continue
            watermark = partition.watermark()
            if watermark > partition.committed:
                due[place] = watermark
        return due

    def committed_offset(self, place: Place) -> int | None:
        """What the group has, as far as it is known."""
        partition = self._partitions.get(place)
        return partition.committed if partition is not None else None

    def committed(self, place: Place, offset: int) -> None:
        """Note that the group accepted `offset`: the watermark never goes back below it."""
        partition = self._partitions.get(place)
        if partition is not None and partition.committed is not None:
            partition.committed = max(partition.committed, offset)

    def oldest_open(self) -> dict[Place, float]:
        """Per partition, when its oldest open record was taken (monotonic seconds)."""
        return {
            place: min(partition.open.values())
            for place, partition in self._partitions.items()
            if partition.open
        }

    @property
    def num_open(self) -> int:
        return sum(len(partition.open) for partition in self._partitions.values())


def _without(gaps: list[Gap], cut: Gap) -> list[Gap]:
    """`gaps` less `cut`."""
    left = []
    for start, end in gaps:
        left += [(start, min(end, cut[0])), (max(start, cut[1]), end)]
    return [(start, end) for start, end in left if start < end]
