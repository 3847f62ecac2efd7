"""Which records are taken and unfinished, and up to where a partition may be committed.

Plain state, no I/O. Knows nothing of requests; it must be told of every record taken.

    offset     40        41        42      43        44        45
    state      finished  finished  open    finished  finished  not taken
    watermark                      ^ 42, the lowest unfinished offset

With nothing open the watermark is the offset after the last record taken: never the consumer's
position, because records that were fetched but not yet taken lie below that one.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """Where a record stands: topic and partition number."""

    topic: str
    partition: int


@dataclass(slots=True)
class _Partition:
    open: dict[int, float] = field(default_factory=dict)  # offset -> when it was taken, monotonic s
    last_taken: int = -1
    committed: int = -1


class AckLedger:
    """The open records of the partitions that this process owns."""

    def __init__(self) -> None:
        self._partitions: dict[Place, _Partition] = {}

    def take(self, place: Place, offset: int, now_s: float) -> bool:
        """Note a record as open. False: it is open already (read again after a rebalance)."""
        partition = self._partitions.setdefault(place, _Partition())
        if offset in partition.open:
            return False
        partition.open[offset] = now_s
        partition.last_taken = max(partition.last_taken, offset)
        return True

    def is_open(self, place: Place, offset: int) -> bool:
        """False as well when the partition was lost meanwhile: then the record is not ours."""
        partition = self._partitions.get(place)
        return partition is not None and offset in partition.open

    def finish(self, place: Place, offset: int) -> None:
        """Note a record as done with; of a partition that was lost, nothing is noted."""
        partition = self._partitions.get(place)
        if partition is not None:
            partition.open.pop(offset, None)

    def keep_only(self, places: Collection[Place]) -> list[tuple[Place, int]]:
        """Forget every other partition; returns their open records, which another worker redoes."""
        lost = [place for place in self._partitions if place not in places]
        return [(place, offset) for place in lost for offset in self._partitions.pop(place).open]

    def idle_from(self, place: Place) -> int | None:
        """The offset after the last record taken, if all are finished; None: busy, or none taken."""
        partition = self._partitions.get(place)
        if partition is None or partition.open or partition.last_taken < 0:
            return None
        return partition.last_taken + 1

    def is_busy(self, place: Place) -> bool:
        partition = self._partitions.get(place)
        return partition is not None and bool(partition.open)

    def step_over(self, place: Place, start: int, end: int) -> None:
        """Note that no record stands in [start, end): it was looked for while nothing was open.

        Without effect when a record was taken meanwhile.
        """
        partition = self._partitions.setdefault(place, _Partition())
        if (
            not partition.open
            and partition.last_taken < end
            and (partition.last_taken + 1 in (0, start))
        ):
            partition.last_taken = end - 1

    def watermarks(self) -> dict[Place, int]:
        """What may be committed now and was not yet: per partition, the next offset to read."""
        due = {}
        for place, partition in self._partitions.items():
            watermark = min(partition.open, default=partition.last_taken + 1)
            if watermark > partition.committed and partition.last_taken >= 0:
                due[place] = watermark
        return due

    def committed(self, place: Place, offset: int) -> None:
        """Note that the group accepted `offset`: the watermark never goes back below it."""
        partition = self._partitions.get(place)
        if partition is not None:
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
