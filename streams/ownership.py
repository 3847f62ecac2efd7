"""Who may act on a partition: assignments with their fencing tokens, and the group's lease.

Plain state, no I/O. Steps `own` and `lease` of docs/delivery.md.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from threading import Lock

from headrace.schemas.request import Record

LEASE_MARGIN = 0.25
"""Part of the session timeout by which the lease ends early: an act that was allowed at its last
moment must reach Kafka before the group can give the partition away."""


class Lease:
    """Whether the group still counts this process in: its last answered heartbeat is recent.

    Thread-safe: heartbeats are noted by the consumer's thread. Times are `time.monotonic()`, which
    goes on while a process is stopped, so one that wakes up finds its lease over.
    """

    def __init__(self, session_timeout_s: float) -> None:
        self._valid_s = session_timeout_s * (1 - LEASE_MARGIN)
        self._lock = Lock()
        self._answered_s: float | None = None
        self._suspended = False

    def heartbeat_answered(self, sent_s: float) -> None:
        """Note an answer; the group counts from when it got the heartbeat,
        so not before `sent_s`.
        """
        with self._lock:
            self._answered_s = max(sent_s, self._answered_s or sent_s)

    def lost(self) -> None:
        """Note that the group does not know this member any more."""
        with self._lock:
            self._answered_s = None

    def suspend(self) -> None:
        """The group is rebalancing: what is ours is not known until `resume`."""
        with self._lock:
            self._suspended = True

    def resume(self) -> None:
        with self._lock:
            self._suspended = False

    def held(self, now_s: float) -> bool:
        with self._lock:
            if self._suspended or self._answered_s is None:
                return False
            return now_s - self._answered_s < self._valid_s


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assignment of a request partition to this process.

    `token`: the fencing token taken for it. `end_offset`: the partition's end when it was assigned;
    a record at or after it came later, so nobody else can have started it.
    """

    partition: int
    token: int
    end_offset: int | None


class Ownership:
    """The request partitions that the group has given to this process."""

    def __init__(self) -> None:
        self._assignments: dict[int, Assignment] = {}

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """Replace everything by a new assignment of the group.

        NOTE: also for a partition that stays. This process may have been expelled and taken back in
        between, and somebody else may have had it meanwhile.
        """
        self._assignments = {new.partition: new for new in assignments}

    def keep_only(self, partitions: Collection[int]) -> None:
        """Stop owning every other partition, at once."""
        self._assignments = {p: a for p, a in self._assignments.items() if p in partitions}

    def renew(self, partition: int, token: int) -> None:
        """Put a larger token in the place of the one that was refused."""
        old = self._assignments.get(partition)
        if old is not None and token > old.token:
            self._assignments[partition] = Assignment(partition, token, old.end_offset)

    def next_token(self, partition: int, clock_ms: int, *, above: int = 0) -> int:
        """own: the clock, but larger than any token that this process knows for the partition.

        `above`: another token to exceed. Clock and Redis may both have gone back.
        """
        assignment = self._assignments.get(partition)
        known = max(above, assignment.token if assignment else 0)
        return max(clock_ms, known + 1)

    def get(self, partition: int) -> Assignment | None:
        return self._assignments.get(partition)

    def came_since(self, record: Record) -> bool:
        """Whether it came after its partition's assignment: nobody else can have started it.

        No longer true of what this process has begun itself, once there is another assignment.
        """
        assignment = self._assignments.get(record.partition)
        if assignment is None or assignment.end_offset is None:
            return False
        return record.offset >= assignment.end_offset

    def owns(self, partition: int) -> bool:
        return partition in self._assignments
