"""The simulated load on the autoscaler's own decision: storms, stalls, and what a policy costs."""

import pytest

from benchmarks.lib.scaling_loads import LOADS, Load, arrivals
from benchmarks.lib.scaling_policies import HorizontalPodAutoscaler, KedaLagPolicy, OurPolicy
from benchmarks.lib.scaling_sim import Outcome, Seen, Simulation

LOAD = {load.name: load for load in LOADS}

MAX_EVENTS = 12
"""For ten minutes of sawtooth, the way up from nothing and the way down after it included."""


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sawtooth_makes_no_rebalance_storm(seed: int) -> None:
    """The load crosses the threshold each 30 s for ten minutes."""
    outcome = Simulation(LOAD["sawtooth"], OurPolicy(min_workers=1), seed=seed).run()
    assert outcome.events <= MAX_EVENTS
    assert outcome.most_workers <= 12
    assert outcome.longest_stall_s <= 30


def test_equal_seeds_give_equal_runs() -> None:
    """Nothing in it is random but the arrivals."""
    short = Load("short", 120, lambda now_s: 3.0)
    assert Simulation(short, OurPolicy()).run() == Simulation(short, OurPolicy()).run()
    assert list(arrivals(short, 1)) != list(arrivals(short, 2))


def test_all_that_arrives_is_answered() -> None:
    """From no worker at all; then they all go."""
    burst = Load("burst", 400, lambda now_s: 4.0 if now_s < 60 else 0.0)
    outcome = Simulation(burst, OurPolicy()).run()
    assert len(outcome.ages_s) == len(list(arrivals(burst, 0)))
    assert outcome.counts[-1] == 0


def test_time_to_target_counts_until_it_stays() -> None:
    """A dip that does not last is not the end; a run that ends too soon has none."""
    outcome = Outcome(
        backlog_s=[(float(t), 20.0 if t < 50 or t == 60 else 1.0) for t in range(200)]
    )
    assert outcome.time_to_target_s(10.0, 10.0, 30.0) == 50.0
    assert outcome.time_to_target_s(70.0, 10.0, 30.0) == 0.0
    assert Outcome(backlog_s=[(0.0, 20.0), (1.0, 20.0)]).time_to_target_s(0, 10, 30) is None


def test_an_hpa_goes_up_by_four_or_twice_and_down_after_five_minutes() -> None:
    """Its limits for each look, and the largest recommendation of the window."""
    hpa = HorizontalPodAutoscaler(lowest=1)
    assert hpa.replicas(0.0, 1, 12) == 5
    assert hpa.replicas(15.0, 5, 12) == 10
    assert hpa.replicas(30.0, 10, 3) == 10
    assert hpa.replicas(331.0, 10, 3) == 3


def test_keda_goes_from_and_to_zero_by_the_lag_alone() -> None:
    """At once with one record; back after five minutes without."""

    def seen(now_s: float, records: int, count: int) -> Seen:
        return Seen(now_s, records, 0, 0, (), (0.0,) * count, 20.0)

    keda = KedaLagPolicy()
    assert [keda.decide(seen(0, 0, 0)), keda.decide(seen(15, 1, 0))] == [0, 1]
    assert keda.decide(seen(30, 41, 1)) == 5
    assert keda.decide(seen(45, 1000, 8)) == 12
    assert [keda.decide(seen(330, 0, 3)), keda.decide(seen(360, 0, 3))] == [3, 0]
