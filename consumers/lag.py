"""How far the workers are behind: in records, seconds and tokens. The values, and their sums.

Plain data. Where they come from is `lag_service`'s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a topic that the group reads. Nothing here is ever negative."""

    topic: str
    partition: int
    records: int
    """Not finished yet: also those that a worker has taken and answers now."""
    seconds: float
    """Age of the oldest unfinished record; 0.0 where there is none."""
    tokens: int
    """Estimated work: the prompts' tokens and those of the expected answers; control records: 0."""
    committed: int | None
    """The group's committed offset; None where it has none, or an expired one."""
    start: int
    end: int
    """Offsets [start, end) can be read."""


@dataclass(frozen=True, slots=True)
class Lag:
    """All partitions at one time, by topic and number."""

    partitions: tuple[PartitionLag, ...]
    read_at_s: float
    """When it was read: monotonic seconds."""

    def of(self, topic: str) -> "Lag":
        """The partitions of one topic."""
        return Lag(tuple(one for one in self.partitions if one.topic == topic), self.read_at_s)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def seconds(self) -> float:
        """Of the partition that is furthest behind."""
        return max((one.seconds for one in self.partitions), default=0.0)

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.partitions)
