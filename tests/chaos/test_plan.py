"""The plan of a chaos run: a function of its seed, with everything in it that was asked for."""

from collections import Counter

from tests.chaos.plan import EVERY_KIND, FaultKind, SessionKind, make_plan


def test_equal_seeds_give_equal_plans_and_others_do_not() -> None:
    """Requests, texts, faults and times."""
    assert make_plan(7, requests=200, faults=30) == make_plan(7, requests=200, faults=30)
    assert make_plan(7, requests=200, faults=30) != make_plan(8, requests=200, faults=30)


def test_it_has_as_many_requests_and_faults_as_were_asked_for() -> None:
    """And every request id once."""
    plan = make_plan(3, requests=501, faults=40)
    ids = [turn.request_id for session in plan.sessions for turn in session.turns]
    assert (len(ids), len(set(ids)), len(plan.faults)) == (501, 501, 40)


def test_every_kind_comes_up_before_one_comes_up_again() -> None:
    """So that a short run has as many kinds as faults."""
    plan = make_plan(1, requests=10, faults=len(EVERY_KIND))
    assert Counter(EVERY_KIND) == Counter(fault.kind for fault in plan.faults)


def test_a_long_run_stops_one_worker_for_a_minute() -> None:
    """Once."""
    plan = make_plan(1, requests=10, faults=60)
    kinds = Counter(fault.kind for fault in plan.faults)
    assert kinds[FaultKind.WORKER_ZOMBIE_LONG] == 1


def test_faults_and_sessions_lie_within_the_run() -> None:
    """In order, and all that a client does is in a large one."""
    plan = make_plan(2, requests=600, faults=20)
    times = [fault.at_s for fault in plan.faults]
    assert times == sorted(times)
    times += [session.at_s for session in plan.sessions]
    assert all(0 <= at_s < plan.length_s for at_s in times)
    assert set(SessionKind) == {session.kind for session in plan.sessions}


def test_a_worker_joins_before_one_leaves() -> None:
    """A run with two workers goes on with two."""
    for seed in range(20):
        kinds = [fault.kind for fault in make_plan(seed, requests=1, faults=36).faults]
        wanted = [
            kinds[: n + 1].count(FaultKind.WORKER_JOINS) - kinds[:n].count(FaultKind.WORKER_LEAVES)
            for n, kind in enumerate(kinds)
            if kind is FaultKind.WORKER_LEAVES
        ]
        assert all(more > 0 for more in wanted)
