"""Rate limits: no more than a minute's worth, and what time has made up, is admitted."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.open_calls import OpenCalls
from headrace.consumers.rate_limits import (
    MAX_FREE_REPEATS,
    MAX_REMEMBERED,
    REMEMBERED_S,
    Limits,
    RateLimits,
    Standing,
)
from headrace.schemas.errors import RateLimitedError, RequestError

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "withdraw", "began", "ended"]),
        st.integers(0, 6),  # which request
        st.integers(1, 100),  # tokens
        st.floats(0, 30),  # seconds since the action before
    ),
    max_size=60,
)


def limits(requests: int | None = None, tokens: int | None = None) -> RateLimits:
    """Of the one tenant `t`."""
    return RateLimits(lambda name: Limits(requests, tokens) if name == "t" else None)


def refusal(rates: RateLimits, request_id: str, num_tokens: int, now_s: float) -> RateLimitedError:
    with pytest.raises(RateLimitedError) as refused:
        rates.admit("t", request_id, num_tokens=num_tokens, now_s=now_s)
    return refused.value


@given(ACTIONS)
def test_what_is_admitted_stays_within_the_limit(
    actions: list[tuple[str, int, int, float]],
) -> None:
    """Charges less refunds <= limit + rate * time, over every stretch of time; refunds are never
    more than what was reserved; a wait that was kept is enough.
    """
    rates, now_s = limits(requests=20, tokens=200), 0.0
    history: list[tuple[float, int]] = []
    reserved: dict[str, int] = {}
    for action, number, num_tokens, passed_s in actions:
        now_s += passed_s
        name = f"r{number}"
        if action == "admit":
            try:
                charged = rates.admit("t", name, num_tokens=num_tokens, now_s=now_s)
            except RateLimitedError as problem:
                again = copy.deepcopy(rates)
                later_s = now_s + problem.retry_after_s
                again.admit("t", name, num_tokens=num_tokens, now_s=later_s)
                continue
            if charged:
                assert name not in reserved
                reserved[name] = num_tokens
                history.append((now_s, num_tokens))
        elif action == "withdraw":
            rates.withdraw("t", name, now_s=now_s)
            given_back = reserved.pop(name, 0)
            history.append((now_s, -given_back))
        elif action == "began":
            rates.began("t", name, now_s=now_s)
            reserved.setdefault(name, 0)
        else:
            used = min(num_tokens, reserved.get(name, 0))
            rates.ended("t", name, num_tokens=used, now_s=now_s)
            history.append((now_s, used - reserved.get(name, 0)))
            reserved.pop(name, None)
        standing = rates.standings("t", now_s=now_s)["tokens"]
        assert 0 <= standing.remaining <= 200
    for first in range(len(history)):
        start_s, total = history[first][0], 0
        for at_s, change in history[first:]:
            total += change
            assert total <= 200 + 200 / 60 * (at_s - start_s) + 1e-6


def test_a_wait_is_told_to_the_second_and_is_enough() -> None:
    """Two calls a minute: the third waits for half of it."""
    rates = limits(requests=2)
    for name in ("a", "b"):
        assert rates.admit("t", name, num_tokens=9, now_s=100.0)
    assert refusal(rates, "c", 9, 100.0).retry_after_s == 30
    assert refusal(rates, "c", 9, 110.5).retry_after_s == 20
    assert rates.admit("t", "c", num_tokens=9, now_s=130.0)
    assert rates.standings("t", now_s=130.0) == {"requests": Standing(2, 0, 60.0)}


def test_the_longer_of_two_waits_is_told() -> None:
    """A caller who waits for one limit must not find the other one in its way."""
    rates = limits(requests=1, tokens=60)
    rates.admit("t", "a", num_tokens=30, now_s=0.0)
    problem = refusal(rates, "b", 50, 0.0)
    assert (problem.retry_after_s, problem.limit) == (60, "requests")
    problem = refusal(rates, "b", 50, 59.0)
    assert problem.retry_after_s == 1
    assert problem.body()["retry_after_s"] == 1
    assert copy.copy(problem).body() == problem.body()


def test_what_never_fits_is_told_so() -> None:
    """No waiting helps, so it is not `rate_limited`; nothing is charged."""
    rates = limits(requests=1, tokens=60)
    with pytest.raises(RequestError) as refused:
        rates.admit("t", "a", num_tokens=61, now_s=0.0)
    assert (refused.value.code.value, refused.value.param) == ("invalid_value", "max_tokens")
    assert rates.admit("t", "b", num_tokens=60, now_s=0.0)


def test_the_end_settles_what_was_reserved() -> None:
    """Once, however often the last event is read; more than was reserved is owed."""
    rates = limits(tokens=100)
    rates.admit("t", "a", num_tokens=80, now_s=0.0)
    for _ in range(2):
        rates.ended("t", "a", num_tokens=30, now_s=0.0)
    assert rates.standings("t", now_s=0.0)["tokens"].remaining == 70
    rates.admit("t", "b", num_tokens=70, now_s=0.0)
    rates.ended("t", "b", num_tokens=130, now_s=0.0)
    assert rates.standings("t", now_s=0.0)["tokens"] == Standing(100, 0, 96.0)


def test_two_gateways_keep_one_account() -> None:
    """Each sees in the log what the other admitted; neither charges its own twice."""
    here, there = limits(requests=10, tokens=100), limits(requests=10, tokens=100)
    here.admit("t", "a", num_tokens=80, now_s=0.0)
    for one in (here, there):
        one.began("t", "a", now_s=0.0)
        one.began("t", "a", now_s=0.0)
        one.ended("t", "a", num_tokens=60, now_s=0.0)
        standings = one.standings("t", now_s=0.0)
        assert (standings["requests"].remaining, standings["tokens"].remaining) == (9, 40)
    assert not there.admit("t", "a", num_tokens=80, now_s=0.0)  # the same request again


def test_an_id_that_is_sent_again_is_charged_once() -> None:
    """A retry costs nothing; retries without end count as calls, never as tokens."""
    rates = limits(requests=3, tokens=100)
    assert rates.admit("t", "a", num_tokens=90, now_s=0.0)
    for _ in range(MAX_FREE_REPEATS):
        assert not rates.admit("t", "a", num_tokens=90, now_s=0.0)
    assert rates.standings("t", now_s=0.0)["requests"].remaining == 2
    for _ in range(2):
        assert not rates.admit("t", "a", num_tokens=90, now_s=0.0)
    assert refusal(rates, "a", 90, 0.0).limit == "requests"
    assert rates.standings("t", now_s=0.0)["tokens"].remaining == 10


def test_what_was_not_written_costs_nothing() -> None:
    """Until its events show that it was; what is over is not given back."""
    rates = limits(requests=3, tokens=100)
    rates.admit("t", "a", num_tokens=90, now_s=0.0)
    rates.withdraw("t", "a", now_s=0.0)
    assert rates.standings("t", now_s=0.0)["tokens"].remaining == 100
    rates.ended("t", "a", num_tokens=50, now_s=0.0)
    rates.withdraw("t", "a", now_s=0.0)
    standings = rates.standings("t", now_s=0.0)
    assert (standings["requests"].remaining, standings["tokens"].remaining) == (2, 50)


def test_lost_ends_and_old_ids_are_forgotten() -> None:
    """What they reserved is made up for by time; the memory is bounded."""
    rates = limits(tokens=100)
    rates.admit("t", "a", num_tokens=100, now_s=0.0)
    assert rates.standings("t", now_s=60.0)["tokens"].remaining == 100
    assert rates.admit("t", "a", num_tokens=10, now_s=REMEMBERED_S + 1)
    for number in range(MAX_REMEMBERED + 10):
        rates.began("t", f"r{number}", now_s=REMEMBERED_S + 1)
    assert rates.admit("t", "a", num_tokens=10, now_s=REMEMBERED_S + 1)


def test_a_limit_that_changes_holds_at_once() -> None:
    """Also one that comes or goes: what was used without a limit is not owed."""
    now = {"t": Limits(tokens=100)}
    rates = RateLimits(now.get)
    rates.admit("t", "a", num_tokens=50, now_s=0.0)
    now["t"] = Limits(tokens=60)
    assert refusal(rates, "b", 20, 0.0).retry_after_s == 10
    now["t"] = Limits(requests=5)
    rates.admit("t", "b", num_tokens=10_000, now_s=0.0)
    now["t"] = Limits(requests=5, tokens=100)
    assert rates.admit("t", "c", num_tokens=100, now_s=0.0)


def test_only_tenants_with_limits_have_accounts() -> None:
    """The log may hold any tenant's name; one whose keys are gone is forgotten."""
    now: dict[str, Limits] = {"t": Limits(requests=1), "free": Limits()}
    rates = RateLimits(now.get)
    for name in ("t", "free", "stranger"):
        rates.began(name, "a", now_s=0.0)
        rates.ended(name, "a", num_tokens=5, now_s=0.0)
    assert rates.num_accounts == 1
    assert rates.standings("free", now_s=0.0) == {}
    assert not rates.admit("free", "b", num_tokens=10**9, now_s=0.0)
    now.pop("t")
    now["u"] = Limits(requests=1)
    rates.began("u", "a", now_s=1e6)
    assert rates.num_accounts == 1


def test_open_calls_are_bounded_by_tenant_and_in_all() -> None:
    """One tenant leaves room for others; what is given back is free again."""
    calls = OpenCalls("calls", max_open=3, max_per_tenant=2)
    for name in ("a", "a", "b"):
        calls.take(name)
    with pytest.raises(RateLimitedError):
        calls.take("c")
    calls.give_back("b")
    with pytest.raises(RateLimitedError):
        calls.take("a")
    calls.take("c")
    for name in ("a", "a", "c"):
        calls.give_back(name)
    assert calls.num_open == 0
