"""Ways to decide how many workers there should be: ours, KEDA's lag rule, and an HPA on CPU.

Rules of the other two by their documentation, with their defaults; neither is run here.
"""

import math
from collections import deque

from benchmarks.lib.scaling_loads import NUM_PARTITIONS
from benchmarks.lib.scaling_sim import MAX_OPEN, MAX_ROWS, Seen
from headrace.deploy.autoscale.decision import Autoscaler, Backlog, Reading, Workers
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.autoscale.speed import Counters, SpeedMeter
from headrace.deploy.autoscale.work_left import WorkLeft

SYNC_S = 15.0
"""How often an HPA looks, and KEDA polls here (its default is 30 s)."""

DOWN_WINDOW_S = 300.0
COOLDOWN_S = 300.0
TOLERANCE = 0.1
LAG_THRESHOLD = 10
"""KEDA's default, in records of a worker."""

TUNED_LAG_THRESHOLD = 40
"""Chosen afterwards, for the lengths of these answers: about the lag of a busy worker here."""

CPU_TARGET = 0.7


class OurPolicy:
    """The decision of `headrace up --autoscale 0..12`, fed as the real loop feeds it."""

    interval_s = 2.0
    first_workers = 0

    def __init__(self, min_workers: int = 0, max_workers: int = NUM_PARTITIONS) -> None:
        self.first_workers = min_workers
        self._autoscaler = Autoscaler(Policy(min_workers, max_workers))
        self._speed = SpeedMeter(MAX_ROWS)
        self._left = WorkLeft(MAX_OPEN)

    def decide(self, seen: Seen) -> int:
        """From the lag's tokens and the workers' counters."""
        counters = {
            one.number: Counters(one.generated, 0.0, float(len(one.rows)), float(one.waiting))
            for one in seen.ready
        }
        self._speed.see(seen.now_s, counters)
        tokens = self._left.tokens(seen.records, seen.tokens, counters)
        backlog = Backlog(seen.records, tokens, NUM_PARTITIONS, seen.partitions_with_work)
        workers = Workers(len(seen.ready), seen.starting_since_s)
        reading = Reading(
            seen.now_s,
            backlog,
            workers,
            self._speed.speed_tok_s,
            self._speed.rate_tok_s,
            seen.start_s,
        )
        return self._autoscaler.decide(reading).desired


class HorizontalPodAutoscaler:
    """What both of the others scale with: 4 pods or twice as many each 15 s; down by the largest
    of the recommendations of five minutes.

    Source: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
    """

    def __init__(self, lowest: int) -> None:
        self._lowest = lowest
        self._recommended: deque[tuple[float, int]] = deque()

    def replicas(self, now_s: float, current: int, recommended: int) -> int:
        """The number of replicas for what the metric recommends."""
        wanted = max(self._lowest, min(NUM_PARTITIONS, recommended))
        self._recommended.append((now_s, wanted))
        while self._recommended[0][0] < now_s - DOWN_WINDOW_S:
            self._recommended.popleft()
        if wanted > current:
            return min(wanted, max(current + 4, 2 * current))
        return min(current, max(number for _, number in self._recommended))


class KedaLagPolicy:
    """A ScaledObject with a Kafka trigger: ⌈lag ÷ lagThreshold⌉, at most one per partition; to zero
    after five minutes without lag.

    Source: https://keda.sh/docs/latest/scalers/apache-kafka/
    """

    interval_s = SYNC_S
    first_workers = 0

    def __init__(self, lag_threshold: int = LAG_THRESHOLD) -> None:
        self._threshold = lag_threshold
        self._hpa = HorizontalPodAutoscaler(lowest=1)
        self._active_s = -math.inf

    def decide(self, seen: Seen) -> int:
        """From the records alone."""
        if seen.records > 0:
            self._active_s = seen.now_s
        if seen.count == 0:
            return 1 if seen.records > 0 else 0
        if seen.now_s - self._active_s > COOLDOWN_S:
            return 0
        lag = min(seen.records, NUM_PARTITIONS * self._threshold)
        ratio = lag / (self._threshold * seen.count)
        wanted = seen.count if abs(ratio - 1) <= TOLERANCE else math.ceil(lag / self._threshold)
        return self._hpa.replicas(seen.now_s, seen.count, wanted)


class CpuPolicy:
    """An HPA on 70 % CPU. A worker that generates uses its CPUs whatever its batch is; pods that
    start count as idle when there is more to do.
    """

    interval_s = SYNC_S
    first_workers = 1

    def __init__(self) -> None:
        self._hpa = HorizontalPodAutoscaler(lowest=1)
        self._busy_s: dict[int, float] = {}

    def decide(self, seen: Seen) -> int:
        """From how long each worker was busy since the last look."""
        before, self._busy_s = self._busy_s, {one.number: one.busy_s for one in seen.ready}
        used = [min(1.0, (one.busy_s - before.get(one.number, 0.0)) / SYNC_S) for one in seen.ready]
        if not used:
            return self._hpa.replicas(seen.now_s, seen.count, seen.count)
        ratio = sum(used) / len(used) / CPU_TARGET
        num_pods = len(used)
        if ratio > 1:
            num_pods = seen.count
            ratio = max(1.0, sum(used) / num_pods / CPU_TARGET)
        wanted = seen.count if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * num_pods)
        return self._hpa.replicas(seen.now_s, seen.count, wanted)
