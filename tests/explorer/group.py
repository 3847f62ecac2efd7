"""The group's coordinator: who is a member, and which partitions each has.

As Kafka's classic protocol with eager rebalances: every member that lives learns of a rebalance
with its next heartbeat, gives up nothing before it has joined again, and the next generation begins
when all have joined or were expelled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.explorer.worker import SimWorker

SESSION_TIMEOUT_S = 6.0

SYNC_S = 0.005
"""From the last join to the answer that brings the assignment. NOTE: clocks must have gone on
meanwhile, since a fencing token that was taken without Redis is the clock alone.
"""


@dataclass(eq=False)
class Member:
    """One membership of a worker; one that was expelled comes back as another."""

    worker: "SimWorker"
    heard_s: float
    has_joined: bool = False
    generation: int = 0
    """Of the last assignment that it has been told."""


class Group:
    """Plain state. `now_s` is the coordinator's clock."""

    def __init__(self, num_partitions: int, now_s: Callable[[], float]) -> None:
        self._num_partitions, self._now_s = num_partitions, now_s
        self.members: list[Member] = []
        self.generation = 0
        self.is_rebalancing = False
        self._assigned_s = 0.0
        self.plan: list[int] = [0]
        """Which of the members gets each partition, at the next assignment."""
        self._owners: dict[int, Member] = {}

    def join(self, worker: "SimWorker") -> None:
        """A new member, or one that joins again for the next generation."""
        member = self.member_of(worker)
        if member is None:
            member = Member(worker, self._now_s())
            self.members.append(member)
        member.has_joined, member.heard_s = True, self._now_s()
        self.is_rebalancing = True
        self._complete_if_all_have_joined()

    def leave(self, worker: "SimWorker") -> None:
        member = self.member_of(worker)
        if member is not None:
            self.members.remove(member)
            self.rebalance()

    def rebalance(self, plan: list[int] | None = None) -> None:
        """Everybody has to join again."""
        if plan is not None:
            self.plan = plan
        if not self.is_rebalancing:
            self.is_rebalancing = True
            for member in self.members:
                member.has_joined = False
        self._complete_if_all_have_joined()

    def expel(self) -> None:
        """Those who were not heard of for the session timeout."""
        end_s = self._now_s() - SESSION_TIMEOUT_S
        for member in [one for one in self.members if one.heard_s < end_s]:
            self.members.remove(member)
            self.rebalance()

    def _complete_if_all_have_joined(self) -> None:
        if not self.members or not all(member.has_joined for member in self.members):
            return
        self.is_rebalancing = False
        self._assigned_s = self._now_s() + SYNC_S
        self.generation += 1
        chosen = [self.plan[p % len(self.plan)] for p in range(self._num_partitions)]
        self._owners = {p: self.members[n % len(self.members)] for p, n in enumerate(chosen)}

    def member_of(self, worker: "SimWorker") -> Member | None:
        return next((member for member in self.members if member.worker is worker), None)

    def heartbeat(self, worker: "SimWorker") -> bool:
        """Whether the member is known; it is heard of now."""
        member = self.member_of(worker)
        if member is not None:
            member.heard_s = self._now_s()
        return member is not None

    def must_join(self, worker: "SimWorker") -> bool:
        """Whether its next heartbeat tells it to join again."""
        member = self.member_of(worker)
        return member is None or (self.is_rebalancing and not member.has_joined)

    def has_news(self, worker: "SimWorker") -> bool:
        """Whether an assignment waits for it."""
        member = self.member_of(worker)
        if member is None or self.is_rebalancing or self._now_s() < self._assigned_s:
            return False
        return member.generation != self.generation

    def tell(self, worker: "SimWorker") -> list[int]:
        """Its partitions in this generation."""
        member = self.member_of(worker)
        assert member is not None
        member.generation = self.generation
        return [p for p, owner in self._owners.items() if owner is member]

    def generation_of(self, worker: "SimWorker") -> int:
        """What it believes to be the generation; 0: it is no member."""
        member = self.member_of(worker)
        return 0 if member is None else member.generation

    def accepts(self, worker: "SimWorker", generation: int) -> bool:
        """Whether it may commit as a member of `generation`."""
        return self.member_of(worker) is not None and generation == self.generation
