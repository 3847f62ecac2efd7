"""How many workers there should be: the decision alone, without clock or I/O.

Owns the rules and what they remember: the needs of the last window, and when workers last came or
went. Does not know where its figures are from, nor how workers are started. The reasons stand in
docs/decisions/013-autoscaling.md.
"""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from headrace.deploy.autoscale.policy import Policy

GROWTH_WINDOW_S = 10.0
"""Growth that lasted less is a burst, which is counted once: as backlog."""

MIN_STEPS = 3
"""Readings apart, before their median says anything about growth."""

START_SHARE = 0.25
"""Of what a start takes: who waits for minutes for a worker decides less often about more."""

USABLE_SHARE = 0.85
"""Workers are not taken away where those left would be busier than this."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is unfinished, running requests included. Nothing here is ever negative."""

    records: int
    """Of all topics that workers read."""
    tokens: int
    """Estimated work of the requests that is still to be done."""
    num_partitions: int
    partitions_with_work: int


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers by what they are doing; those that drain are as good as gone."""

    ready: int
    starting_since_s: tuple[float, ...] = ()
    draining: int = 0

    @property
    def count(self) -> int:
        """Capacity: there, or to come."""
        return self.ready + len(self.starting_since_s)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known now. `backlog` is None where the lag is missing or stale."""

    now_s: float
    backlog: Backlog | None
    workers: Workers
    speed_tok_s: float
    """What one busy worker does; above 0."""
    rate_tok_s: float
    """What all of them together do."""
    start_s: float
    """What the start of a worker takes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many workers there should be, and why, in words for a log line."""

    desired: int
    reason: str


class Autoscaler:
    """Asked at each reading, in the order of time; holds no worker, only numbers."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._needs: deque[tuple[float, int]] = deque()
        self._watched_since_s: float | None = None
        self._tokens: deque[tuple[float, int]] = deque()
        self._partitions = policy.max_workers
        self._last: tuple[int, int] | None = None
        self._changed_s = -math.inf
        self._out_s = -math.inf

    def decide(self, reading: Reading) -> Verdict:
        """More workers at once, fewer when fewer have been enough for the whole window.

        Without a backlog the number stays what it is, within its bounds.
        """
        now_s, count = reading.now_s, reading.workers.count
        self._watch_changes(reading)
        if reading.backlog is None:
            self._forget()
            return self._bounded(count, "the lag is unknown")
        self._partitions = reading.backlog.num_partitions
        needed = self._needed(reading, reading.backlog)
        self._remember(now_s, max(needed, self._kept_busy(reading)) if needed else 0)
        if needed > count:
            return self._out(reading, reading.backlog, needed)
        return self._in(reading)

    def _out(self, reading: Reading, backlog: Backlog, needed: int) -> Verdict:
        count = reading.workers.count
        since_s = max(self._out_s, self._changed_s)
        pause_s = max(self._policy.out_pause_s, reading.start_s * START_SHARE)
        if count and reading.now_s - since_s < pause_s:
            return self._bounded(count, "workers came or went just now")
        verdict = self._bounded(needed, _waiting(backlog, reading.speed_tok_s))
        if verdict.desired > count:
            self._out_s = reading.now_s
        return verdict

    def _in(self, reading: Reading) -> Verdict:
        count = reading.workers.count
        enough = max(need for _, need in self._needs)
        if not self._has_watched(reading.now_s) or not self._is_settled(reading):
            return self._bounded(count, "too early to take workers away")
        if enough >= count:
            return self._bounded(count, "as many as are needed")
        half_way = (count + enough) // 2
        return self._bounded(half_way, self._enough_text(enough))

    def _enough_text(self, enough: int) -> str:
        window = f"{self._policy.window_s:g} s"
        if enough == 0:
            return f"nothing unfinished for {window}"
        return f"{enough} {'was' if enough == 1 else 'were'} enough for {window}"

    def _needed(self, reading: Reading, backlog: Backlog) -> int:
        """By the backlog as it will be when a worker that is started now is ready."""
        self._tokens.append((reading.now_s, backlog.tokens))
        _drop_before(self._tokens, reading.now_s - GROWTH_WINDOW_S)
        if backlog.records == 0 and backlog.tokens == 0:
            return 0
        tokens = backlog.tokens + self._growth_tokens(reading, backlog)
        needed = math.ceil(tokens / (self._policy.target_s * reading.speed_tok_s))
        return max(1, min(needed, backlog.partitions_with_work + 1))

    def _growth_tokens(self, reading: Reading, backlog: Backlog) -> float:
        """What comes on top until then; never more than waits already."""
        if len(self._tokens) <= MIN_STEPS:
            return 0.0
        rates = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(self._tokens) if t > s]
        lead_s = reading.start_s
        if starting := reading.workers.starting_since_s:
            lead_s -= reading.now_s - max(starting)
        growth = max(0.0, median(rates or [0.0])) * max(0.0, lead_s)
        return min(float(backlog.tokens), growth)

    def _kept_busy(self, reading: Reading) -> int:
        """How many the work that is being done keeps busy: no reason to add, one to keep them."""
        busy = math.ceil(reading.rate_tok_s / (USABLE_SHARE * reading.speed_tok_s))
        return min(busy, reading.workers.count)

    def _bounded(self, number: int, reason: str) -> Verdict:
        policy = self._policy
        highest = min(policy.max_workers, self._partitions)
        lowest = min(policy.min_workers, highest)
        if number < lowest:
            return Verdict(lowest, f"at least {lowest}")
        return Verdict(min(number, highest), reason)

    def _watch_changes(self, reading: Reading) -> None:
        state = (reading.workers.ready, reading.workers.draining)
        if self._last is not None and state != self._last:
            self._changed_s = reading.now_s
        self._last = state

    def _is_settled(self, reading: Reading) -> bool:
        """No start, no drain and no rebalance is under way."""
        now_s, policy = reading.now_s, self._policy
        starting = any(now_s - s < policy.stuck_s for s in reading.workers.starting_since_s)
        pause_s = min(policy.in_pause_s, policy.window_s)
        changed = now_s - self._changed_s < pause_s
        return not (starting or changed or reading.workers.draining)

    def _remember(self, now_s: float, need: int) -> None:
        if self._watched_since_s is None:
            self._watched_since_s = now_s
        self._needs.append((now_s, need))
        _drop_before(self._needs, now_s - self._policy.window_s)

    def _has_watched(self, now_s: float) -> bool:
        since_s = self._watched_since_s
        return since_s is not None and now_s - since_s >= self._policy.window_s

    def _forget(self) -> None:
        """What happened while nothing was known may have needed any number."""
        self._needs.clear()
        self._tokens.clear()
        self._watched_since_s = None


def _waiting(backlog: Backlog, speed_tok_s: float) -> str:
    seconds = backlog.tokens / speed_tok_s
    return f"{backlog.tokens:,} tokens waiting, {seconds:,.0f} s at {speed_tok_s:,.0f} tok/s each"


def _drop_before(history: deque[tuple[float, int]], time_s: float) -> None:
    while history[0][0] < time_s:
        history.popleft()
