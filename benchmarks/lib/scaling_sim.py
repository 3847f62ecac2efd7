"""A group of workers as a queue model in steps of half a second, to try scaling policies on.

Owns arrivals, partitions, batches, starts and the pauses of rebalances. Does not model tokens one
by one, Redis, failures, or anything random but the arrivals: equal seeds give equal results.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.lib.scaling_loads import MEAN_TOKENS, NUM_PARTITIONS, Arrival, Load, arrivals

STEP_S = 0.5
REBALANCE_S = 1.5
"""How long nobody generates when a worker comes or goes; streams then go on."""

MAX_ROWS, MAX_OPEN = 32, 128
"""How many requests a worker runs, and holds."""

PEAK_TOK_S, HALF_ROWS = 1145.0, 44.8
"""`PEAK * rows / (rows + HALF)`: 25 tok/s for one row and 477 for 32. The form fits what the engine
measured at 1, 8, 32 and 64 rows (78, 547, 1,488, 1,950 tok/s) within 8 %, here for a model three
times as slow.
"""

FULL_TOK_S = PEAK_TOK_S * MAX_ROWS / (MAX_ROWS + HALF_ROWS)


@dataclass(slots=True)
class SimWorker:
    """One worker; ready when `ready_at_s` has passed."""

    number: int
    added_s: float
    ready_at_s: float
    rows: list[Arrival] = field(default_factory=list)
    waiting: int = 0
    """Read, and without a row."""
    generated: float = 0.0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a policy may look at. `tokens` is the lag's estimate: lengths are not known before."""

    now_s: float
    records: int
    tokens: int
    partitions_with_work: int
    ready: tuple[SimWorker, ...]
    starting_since_s: tuple[float, ...]
    start_s: float

    @property
    def count(self) -> int:
        return len(self.ready) + len(self.starting_since_s)


class ScalingPolicy(Protocol):
    """How many workers there should be, asked at each interval."""

    interval_s: float
    first_workers: int

    def decide(self, seen: Seen) -> int:
        """The number now."""


@dataclass(slots=True)
class Outcome:
    """What a run came to. Units: seconds, hours."""

    ages_s: list[float] = field(default_factory=list)
    """From arrival to the end of the answer."""
    worker_s: float = 0.0
    """Of all workers, starts included."""
    events: int = 0
    most_workers: int = 0
    longest_stall_s: float = 0.0
    """With work and without a token."""
    backlog_s: list[tuple[float, float]] = field(default_factory=list)
    """(time, work left ÷ what the ready workers can do), each second."""
    counts: list[int] = field(default_factory=list)

    def time_to_target_s(self, since_s: float, target_s: float, steady_s: float) -> float | None:
        """From `since_s` until the backlog stays within the target for `steady_s`."""
        since = [(t, left_s) for t, left_s in self.backlog_s if t >= since_s]
        over = [t for t, left_s in since if left_s > target_s]
        if not over:
            return 0.0
        candidates = [over[i] for i in range(len(over) - 1) if over[i + 1] - over[i] > steady_s]
        end_s = candidates[0] if candidates else over[-1]
        return end_s - since_s if end_s + steady_s <= since[-1][0] else None


class Simulation:
    """One load, one policy, from the first request to the end of the load."""

    def __init__(self, load: Load, policy: ScalingPolicy, *, seed: int = 0) -> None:
        self._load, self._policy = load, policy
        self._coming = deque(arrivals(load, seed))
        self._partitions: list[deque[Arrival]] = [deque() for _ in range(NUM_PARTITIONS)]
        self._workers: list[SimWorker] = []
        self._num_added = 0
        self._num_ready = 0
        self._paused_until_s = 0.0
        self._stalled_s = 0.0
        self._outcome = Outcome()
        for _ in range(policy.first_workers):
            self._add(-load.start_s)

    def run(self) -> Outcome:
        """All of it; takes a second or so."""
        steps_between = round(self._policy.interval_s / STEP_S)
        for step in range(round(self._load.duration_s / STEP_S)):
            now_s = step * STEP_S
            self._arrive(now_s)
            self._join(now_s)
            generated = self._generate(now_s)
            self._watch(now_s, generated)
            if step % steps_between == 0:
                self._scale(now_s)
        return self._outcome

    def _arrive(self, now_s: float) -> None:
        while self._coming and self._coming[0].time_s <= now_s:
            one = self._coming.popleft()
            self._partitions[one.partition].append(one)

    def _join(self, now_s: float) -> None:
        ready = self._ready(now_s)
        if len(ready) == self._num_ready:
            return
        self._num_ready = len(ready)
        self._rebalance(now_s)

    def _rebalance(self, now_s: float) -> None:
        """Rows are handed over to whoever has their partition from now on."""
        self._paused_until_s = now_s + REBALANCE_S
        for worker in self._workers:
            worker.rows.clear()
            worker.waiting = 0

    def _generate(self, now_s: float) -> float:
        if now_s < self._paused_until_s:
            return 0.0
        ready, total = self._ready(now_s), 0.0
        for index, worker in enumerate(ready):
            self._fill(worker, self._partitions[index :: len(ready)])
            if not worker.rows:
                continue
            speed = PEAK_TOK_S * len(worker.rows) / (len(worker.rows) + HALF_ROWS)
            share = speed / len(worker.rows) * STEP_S
            worker.busy_s += STEP_S
            for row in worker.rows:
                worker.generated += min(share, row.tokens)
                total += min(share, row.tokens)
                row.tokens -= share
                if row.is_finished:
                    self._outcome.ages_s.append(now_s + STEP_S - row.time_s)
            worker.rows = [row for row in worker.rows if not row.is_finished]
        for partition in self._partitions:
            while partition and partition[0].is_finished:
                partition.popleft()
        return total

    def _fill(self, worker: SimWorker, partitions: Iterable[deque[Arrival]]) -> None:
        """The oldest first, up to a full batch."""
        running = set(map(id, worker.rows))
        waiting = [
            one
            for partition in partitions
            for one in partition
            if not one.is_finished and id(one) not in running
        ]
        waiting.sort(key=lambda one: one.time_s)
        room = MAX_ROWS - len(worker.rows)
        worker.rows += waiting[:room]
        worker.waiting = min(len(waiting[room:]), MAX_OPEN - MAX_ROWS)

    def _watch(self, now_s: float, generated: float) -> None:
        outcome = self._outcome
        work = any(self._partitions)
        self._stalled_s = self._stalled_s + STEP_S if work and not generated else 0.0
        outcome.longest_stall_s = max(outcome.longest_stall_s, self._stalled_s)
        outcome.worker_s += len(self._workers) * STEP_S
        outcome.most_workers = max(outcome.most_workers, len(self._workers))
        if now_s % 1 == 0:
            left = sum(max(0.0, one.tokens) for part in self._partitions for one in part)
            ready = len(self._ready(now_s))
            able = max(ready, 0.01) * FULL_TOK_S
            outcome.backlog_s.append((now_s, left / able))
            outcome.counts.append(len(self._workers))

    def _scale(self, now_s: float) -> None:
        desired = self._policy.decide(self._seen(now_s))
        count = len(self._workers)
        if desired == count:
            return
        self._outcome.events += 1
        for _ in range(desired - count):
            self._add(now_s)
        if desired < count:
            self._workers = self._workers[:desired]  # the newest go
            self._join(now_s)

    def _add(self, now_s: float) -> None:
        self._num_added += 1
        worker = SimWorker(self._num_added, now_s, now_s + self._load.start_s)
        self._workers.append(worker)

    def _ready(self, now_s: float) -> list[SimWorker]:
        return [one for one in self._workers if one.ready_at_s <= now_s]

    def _seen(self, now_s: float) -> Seen:
        """The lag counts from the oldest unfinished record of a partition on, as offsets do."""
        lengths = [len(partition) for partition in self._partitions]
        starting = [one.added_s for one in self._workers if one.ready_at_s > now_s]
        return Seen(
            now_s,
            sum(lengths),
            sum(lengths) * MEAN_TOKENS,
            sum(length > 0 for length in lengths),
            tuple(self._ready(now_s)),
            tuple(starting),
            self._load.start_s,
        )
