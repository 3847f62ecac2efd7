"""The circuit breaker: a failing store is left alone, for a bounded time."""

from headrace.models.kv.breaker import FIRST_PAUSE_S, MAX_PAUSE_S, Breaker


def test_a_failure_keeps_callers_out_for_a_while() -> None:
    """Then one may try, and the others wait for what it finds."""
    breaker = Breaker()
    assert breaker.try_enter(0.0)
    breaker.failed(0.5, entered_s=0.0)
    assert not breaker.try_enter(0.5 + FIRST_PAUSE_S - 0.1)
    assert breaker.try_enter(0.5 + FIRST_PAUSE_S)
    assert not breaker.try_enter(0.5 + FIRST_PAUSE_S + 0.1)


def test_success_opens_the_way_for_all() -> None:
    """At once, and the next failure begins with a short pause again."""
    breaker = Breaker()
    breaker.failed(0.0, entered_s=0.0)
    assert breaker.try_enter(FIRST_PAUSE_S)
    breaker.succeeded()
    assert breaker.try_enter(FIRST_PAUSE_S + 0.1)
    breaker.failed(10.0, entered_s=9.0)
    assert breaker.try_enter(10.0 + FIRST_PAUSE_S)


def test_pauses_grow_up_to_a_bound() -> None:
    """A Redis that is away for hours is tried every MAX_PAUSE_S."""
    breaker, now_s, pauses_s = Breaker(), 0.0, []
    for _ in range(8):
        breaker.failed(now_s, entered_s=now_s)
        begin_s = now_s
        while not breaker.try_enter(now_s):
            now_s += 0.5
        pauses_s.append(now_s - begin_s)
    assert pauses_s == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert max(pauses_s) == MAX_PAUSE_S


def test_failures_at_the_same_time_count_once() -> None:
    """Ten requests were under way when Redis went silent."""
    breaker = Breaker()
    for _ in range(10):
        breaker.failed(0.5, entered_s=0.0)
    assert breaker.try_enter(0.5 + FIRST_PAUSE_S)


def test_one_that_tries_and_never_reports_blocks_nobody_for_ever() -> None:
    """It was cancelled, say."""
    breaker = Breaker()
    breaker.failed(0.0, entered_s=0.0)
    assert breaker.try_enter(FIRST_PAUSE_S)
    assert breaker.try_enter(2 * FIRST_PAUSE_S)
