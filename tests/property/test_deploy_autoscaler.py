"""What holds for the autoscaler's decision whatever comes."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.deploy.autoscale.decision import Autoscaler, Backlog, Reading, Verdict, Workers
from headrace.deploy.autoscale.policy import Policy

MAX_PARTITIONS = 20


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    low = draw(st.integers(0, 8))
    return Policy(low, draw(st.integers(max(1, low), 16)), target_s=draw(st.floats(0.5, 120.0)))


@st.composite
def backlogs(draw: st.DrawFn, partitions: int) -> Backlog:
    records = draw(st.integers(0, 10_000))
    busy = draw(st.integers(min(1, records), min(records, partitions)))
    return Backlog(records, draw(st.integers(0, 10**7)) if records else 0, partitions, busy)


@st.composite
def readings(draw: st.DrawFn, partitions: int, highest: int) -> list[Reading]:
    """Any readings, in the order of time."""
    now_s, found = 0.0, []
    for _ in range(draw(st.integers(1, 60))):
        now_s += draw(st.floats(0.1, 30.0))
        ready = draw(st.integers(0, highest))
        starting = draw(st.lists(st.floats(0.0, now_s), max_size=highest - ready))
        workers = Workers(ready, tuple(starting), draw(st.integers(0, 2)))
        work = draw(st.none() | backlogs(partitions))
        speed, rate = draw(st.floats(0.01, 1e5)), draw(st.floats(0.0, 1e6))
        found.append(Reading(now_s, work, workers, speed, rate, draw(st.floats(0.0, 300.0))))
    return found


@settings(max_examples=50)
@given(st.data(), policies(), st.integers(1, MAX_PARTITIONS))
def test_within_bounds_and_never_less_on_nothing_known(
    data: st.DataObject, policy: Policy, partitions: int
) -> None:
    """MIN ≤ desired ≤ min(MAX, partitions); no lag, a start, a drain: nobody goes."""
    highest = min(policy.max_workers, partitions)
    scaler = Autoscaler(policy)
    scaler.decide(Reading(0.0, Backlog(0, 0, partitions, 0), Workers(0), 1.0, 0.0, 0.0))
    for reading in data.draw(readings(partitions, highest)):
        desired = scaler.decide(reading).desired
        assert min(policy.min_workers, highest) <= desired <= highest
        fresh = any(reading.now_s - s < policy.stuck_s for s in reading.workers.starting_since_s)
        if reading.backlog is None:
            assert max(reading.workers.count, min(policy.min_workers, highest)) == desired
        elif fresh or reading.workers.draining or (reading.backlog.records and desired == 0):
            assert desired >= reading.workers.count


@settings(max_examples=50)
@given(st.data(), policies(), st.integers(1, MAX_PARTITIONS), st.integers(0, 10**6))
def test_more_lag_never_asks_for_fewer(
    data: st.DataObject, policy: Policy, partitions: int, more: int
) -> None:
    """The same past, and a last reading with a larger backlog."""
    *past, last = data.draw(readings(partitions, min(policy.max_workers, partitions)))
    work = last.backlog or Backlog(1, 1, partitions, 1)
    larger = Backlog(work.records + more, work.tokens + more, partitions, work.partitions_with_work)
    desired = []
    for backlog in (work, larger):
        scaler = Autoscaler(policy)
        for reading in past:
            scaler.decide(reading)
        desired.append(scaler.decide(_with_backlog(last, backlog)).desired)
    assert desired[0] <= desired[1]


@given(
    policies(),
    st.just(0.0) | st.floats(0.01, 12.0),  # below it the queue is empty most of the time: no load
    st.floats(0.0, 60.0),
    st.integers(0, 16),
)
def test_a_constant_load_does_not_flap(
    policy: Policy, load: float, start_s: float, workers: int
) -> None:
    """An hour of the same arrivals, from any number of workers: up, then down, and there it stays.

    `load` is the work that arrives, in workers; a queue without noise stands for the workers.
    """
    counts = _hour(policy, load, start_s, workers)
    ups = sum(after > before for before, after in pairwise(counts))
    turns = sum((b > a) != (c > b) for a, b, c in _changes_only(counts))
    assert turns <= 3
    assert ups <= policy.max_workers
    # a load just above what the least workers do takes most of the hour to show: then one more
    late = [after - before for before, after in pairwise(counts[-600:]) if after != before]
    assert late in ([], [1])


def _hour(policy: Policy, load: float, start_s: float, workers: int) -> list[int]:
    """Number of workers, each two seconds."""
    scaler, speed, step_s = Autoscaler(policy), 100.0, 2.0
    starting: list[float] = []
    ready, tokens, counts = workers, 0.0, []
    for step in range(1800):
        now_s = step * step_s
        ready += sum(now_s - since_s >= start_s for since_s in starting)
        starting = [since_s for since_s in starting if now_s - since_s < start_s]
        done = min(tokens + load * speed * step_s, ready * speed * step_s)
        tokens += load * speed * step_s - done
        state = Workers(ready, tuple(starting))
        verdict = _ask(scaler, now_s, tokens + load * speed, done / step_s, state, start_s)
        missing = verdict.desired - state.count
        starting += [now_s] * max(0, missing)
        ready += min(0, missing)
        counts.append(verdict.desired)
    return counts


def _ask(
    scaler: Autoscaler, now_s: float, tokens: float, rate: float, workers: Workers, start_s: float
) -> Verdict:
    backlog = Backlog(round(tokens), round(tokens), 16, 16 if tokens >= 1 else 0)
    return scaler.decide(Reading(now_s, backlog, workers, 100.0, rate, start_s))


def _changes_only(counts: list[int]) -> list[tuple[int, int, int]]:
    kept = [count for before, count in pairwise([-1, *counts]) if count != before]
    return list(zip(kept, kept[1:], kept[2:], strict=False))


def _with_backlog(reading: Reading, backlog: Backlog) -> Reading:
    return Reading(
        reading.now_s,
        backlog,
        reading.workers,
        reading.speed_tok_s,
        reading.rate_tok_s,
        reading.start_s,
    )
