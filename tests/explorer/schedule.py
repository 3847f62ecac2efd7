"""A schedule: how many workers and partitions, and what happens in which order.

Made at random (`random_schedule`), or replayed. At its end everything is healed and judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.explorer.actions import Action, Actions
from tests.explorer.checks import ViolationError
from tests.explorer.sim_loop import BusyError
from tests.explorer.verdict import Verdict
from tests.explorer.worker import Life
from tests.explorer.world import World

HEALING_S, HEALING_ROUND_S = 60.0, 0.5
"""How long a healed world may take until every record is committed."""

LATE_ONES_ARRIVE = 2
"""Of `Schedule.end`: what is on its way arrives at the end, else it never does."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`end`: its bits choose what becomes of what is still on its way."""

    num_workers: int
    num_partitions: int
    actions: tuple[Action, ...]
    end: int = 0

    def without(self, begin: int, end: int) -> "Schedule":
        return replace(self, actions=self.actions[:begin] + self.actions[end:])

    def __str__(self) -> str:
        lines = [f"{self.num_workers} workers, {self.num_partitions} partitions, end {self.end}"]
        return "\n".join([*lines, *(f"  {one}" for one in self.actions)])


class Run:
    """One world from its start to its verdict."""

    def __init__(self, num_workers: int, num_partitions: int) -> None:
        self.world = World(num_workers, num_partitions)
        self.actions = Actions(self.world)
        self.world.pass_time(0.4, working=True)  # all have joined
        self.world.doubts.redis_failed = False

    def finish(self, end: int) -> None:
        """Heal, wait until it is quiet, judge. Raises: ViolationError."""
        self._heal()
        for _ in range(int(HEALING_S / HEALING_ROUND_S)):
            self.world.pass_time(HEALING_ROUND_S, working=True)
            self._replace_ended()
            if self.world.is_quiet():
                break
        if end & LATE_ONES_ARRIVE:
            self._let_arrive()
        Verdict(self.world).check()

    def _heal(self) -> None:
        world = self.world
        world.redis_is_up, world.redis_is_full = True, False
        for worker in world.machines:
            worker.is_cut_off = False
            if worker.life is Life.PAUSED:
                self.actions.act(("resume", worker.machine, 0))
        self._replace_ended()

    def _replace_ended(self) -> None:
        """One worker is enough."""
        if not self.world.living:
            self.world.start(0)

    def _let_arrive(self) -> None:
        world = self.world
        for worker in [*world.dead, *world.machines]:
            for operation in worker.redis.line.late:
                operation.carry_out()
            worker.redis.line.late.clear()
            if worker.producer is not None and not worker.is_up:
                while worker.producer.sending:
                    worker.producer.take()

    def judged(self, act: Callable[[], None], end: int) -> ViolationError | None:
        """What is broken by `act` and the end that follows, where the promise holds at all."""
        problem: ViolationError | None = None
        try:
            act()
            self.finish(end)
        except ViolationError as found:
            problem = found
        except BusyError as found:
            problem = ViolationError("busy", str(found))
        finally:
            self.world.close()
        return problem if self.world.doubts.promise_holds else None


def replay(schedule: Schedule) -> ViolationError | None:
    """What it breaks. Only while `staged`."""
    run = Run(schedule.num_workers, schedule.num_partitions)

    def act() -> None:
        for action in schedule.actions:
            run.actions.act(action)

    return run.judged(act, schedule.end)


# how they are made

CALM = {
    "send": 5,
    "feed": 14,
    "redis": 16,
    "redis_step": 4,
    "kafka": 8,
    "publish": 6,
    "offsets": 4,
    "step": 12,
    "work": 2,
    "wait": 2,
    "run": 1,
    "beat": 6,
}
"""How often what is no fault is chosen."""

FAULTS = {
    "crash": ("crash", "start", "start", "publish_late", "publish_late", "late"),
    "pause": ("pause", "resume"),
    "drain": ("drain", "start"),
    "cut": ("cut", "cut"),
    "rebalance": ("rebalance", "beat"),
    "lose": ("redis_lose", "redis_lose", "redis_lose", "late", "late", "late"),
    "away": ("redis_away", "redis_back"),
    "full": ("redis_full", "redis_back"),
    "empty": ("redis_empty",),
    "failover": ("redis_save", "redis_failover"),
    "refuse": ("refuse", "start"),
    "clock": ("clock",),
    "cancel": ("cancel",),
    "again": ("send_again",),
    "poison": ("send_poison",),
    "tombstone": ("send_tombstone",),
    "failing": ("send_failing",),
    "marker": ("send_marker",),
}
"""Kinds of disturbance, and the actions of each. A schedule has some of them."""

ABSENCES = frozenset(("crash", "pause", "cut"))
CHANGES_OWNER = ABSENCES | {"drain", "rebalance", "refuse"}
CHANGE_OF_WORKER = 0.4

WAITS_MS = (1, 20, 45, 100, 300, 600, 2_000)
HANDOVER_MS = (6_100, 6_300, 7_000)
"""After this the group has given away what an absent worker had."""

CLOCK_STEPS_MS = (-3_600_000, -5_000, -1, 1, 5_000, 3_600_000)
MAX_ACTIONS = 140
MAX_MISSES = 50
"""Choices in a row that cannot be done then: nothing is left but to wait for the end."""


class Maker:
    """Chooses the actions of one schedule, of some kinds more often than of others."""

    def __init__(self, rng: Random, kinds: Sequence[str] | None = None) -> None:
        self._rng = rng
        self.num_workers, self.num_partitions = rng.choice((1, 2, 2, 2, 3)), rng.choice((1, 1, 2))
        self.end = rng.randrange(4)
        self.num_actions = rng.randrange(20, MAX_ACTIONS)
        kinds = _possible(kinds or rng.sample(sorted(FAULTS), rng.randrange(1, 6)))
        self._weights = {name: weight * rng.choice((0.5, 1, 2)) for name, weight in CALM.items()}
        self._left = {"send": rng.choice((1, 2, 2, 3, 5)), "wait": 8, "run": 4}
        for kind in kinds:
            for name in FAULTS[kind]:
                self._weights[name] = self._weights.get(name, 0) + rng.choice((0.5, 1, 2))
                self._left[name] = self._left.get(name, 0) + rng.choice((1, 1, 2, 3))
        self._waits_ms: tuple[int, ...] = WAITS_MS
        if ABSENCES.intersection(kinds):
            self._waits_ms += HANDOVER_MS
        self._machine = 0

    def action(self) -> Action:
        """The next one; mostly of the worker that has acted last."""
        rng = self._rng
        (name,) = rng.choices(list(self._weights), list(self._weights.values()))
        if rng.random() < CHANGE_OF_WORKER:
            self._machine = rng.randrange(self.num_workers)
        first, second = self._machine, rng.randrange(6)
        if name in ("wait", "run"):
            first = rng.choice(self._waits_ms)
        elif name == "clock":
            second = rng.choice(CLOCK_STEPS_MS)
        elif name.startswith("send") or name in ("cancel", "rebalance", "publish_late"):
            first = rng.randrange(3)
        return (name, first, second)

    def did(self, name: str) -> None:
        """Of most, there are only so many in a schedule."""
        if name in self._left:
            self._left[name] -= 1
            if self._left[name] <= 0:
                del self._weights[name]


def _possible(kinds: Sequence[str]) -> list[str]:
    """`kinds` without those of which the promise makes an exception."""
    if "failover" in kinds:  # the next owner cannot know that the journal is older than the log
        kinds = [kind for kind in kinds if kind not in CHANGES_OWNER]
    if "again" in kinds:  # who has lost the journal of an answered id answers it again
        kinds = [kind for kind in kinds if kind not in ("empty", "failover")]
    return list(kinds)


def explore_one(
    seed: str, kinds: Sequence[str] | None = None
) -> tuple[Schedule, ViolationError | None, World]:
    """Make and run the schedule of this seed. Only while `staged`."""
    maker = Maker(Random(seed), kinds)
    run = Run(maker.num_workers, maker.num_partitions)
    done: list[Action] = []

    def act() -> None:
        misses = 0
        while len(done) < maker.num_actions and misses < MAX_MISSES:
            action = maker.action()
            done.append(action)
            if run.actions.act(action):
                maker.did(action[0])
                misses = 0
            else:
                done.pop()
                misses += 1

    problem = run.judged(act, maker.end)
    schedule = Schedule(maker.num_workers, maker.num_partitions, tuple(done), maker.end)
    return schedule, problem, run.world


def smaller(schedule: Schedule, kind: str, *, max_replays: int = 2_000) -> Schedule:
    """A schedule with the same kind of violation, of which nothing can be left out."""
    size, left = max(1, len(schedule.actions) // 2), max_replays
    while True:
        begin = 0
        while begin < len(schedule.actions) and left:
            left -= 1
            candidate = schedule.without(begin, begin + size)
            problem = replay(candidate)
            if problem is not None and problem.kind == kind:
                schedule = candidate
            else:
                begin += size
        if size == 1 or not left:
            return schedule
        size //= 2
