"""How many workers there should be: each rule by itself."""

import pytest

from headrace.deploy.autoscale.decision import Autoscaler, Backlog, Reading, Verdict, Workers
from headrace.deploy.autoscale.policy import Policy

SPEED = 100.0
STEP_S = 2.0


def backlog(tokens: int, *, records: int | None = None, busy: int = 12) -> Backlog:
    """Twelve partitions, `busy` of them with work."""
    count = (tokens + 99) // 100 if records is None else records
    return Backlog(count, tokens, 12, busy)


class Run:
    """One autoscaler and its time: readings every two seconds."""

    def __init__(self, policy: Policy) -> None:
        self.scaler = Autoscaler(policy)
        self.now_s = 1000.0

    def ask(
        self,
        work: Backlog | None,
        workers: Workers,
        *,
        rate_tok_s: float = 0.0,
        start_s: float = 0.0,
    ) -> Verdict:
        self.now_s += STEP_S
        reading = Reading(self.now_s, work, workers, SPEED, rate_tok_s, start_s)
        return self.scaler.decide(reading)

    def last_of(
        self, seconds: float, work: Backlog | None, workers: Workers, **more: float
    ) -> Verdict:
        """The same reading again and again; the last verdict."""
        verdicts = [self.ask(work, workers, **more) for _ in range(int(seconds / STEP_S))]
        return verdicts[-1]


def test_the_backlog_is_divided_by_target_and_speed() -> None:
    """2,100 tokens are 21 s for one worker: three workers have it done in 10 s."""
    verdict = Run(Policy(0, 8)).ask(backlog(2100), Workers(ready=1))
    assert Verdict(3, "2,100 tokens waiting, 21 s at 100 tok/s each") == verdict


def test_the_first_request_starts_the_first_worker() -> None:
    """From zero, at once, however little it is."""
    assert Run(Policy(0, 4)).ask(backlog(1), Workers(ready=0)).desired == 1


def test_a_record_of_no_tokens_wants_a_worker() -> None:
    """A tombstone or a cancel has to be read, too."""
    assert Run(Policy(0, 4)).ask(backlog(0, records=1), Workers(ready=0)).desired == 1


def test_workers_that_start_are_counted() -> None:
    """Nobody else is started because the first are not ready yet."""
    run = Run(Policy(0, 8))
    since_s = run.now_s
    desired = {run.ask(backlog(3000), Workers(0, (since_s,) * 3)).desired for _ in range(30)}
    assert {3} == desired


def test_a_backlog_that_grows_counts_as_it_will_be_after_a_start() -> None:
    """50 tokens a second more, and 10 s until a worker is ready: 500 tokens to come."""
    run = Run(Policy(1, 8))
    lags = range(400, 1000, 100)
    desired = [run.ask(backlog(tokens), Workers(1), start_s=10.0).desired for tokens in lags]
    assert 2 in desired
    run = Run(Policy(1, 8))
    desired = [run.ask(backlog(tokens), Workers(1), start_s=0.0).desired for tokens in lags]
    assert 2 not in desired


def test_a_burst_is_not_growth() -> None:
    """A thousand tokens at once are a thousand tokens, not a thousand each two seconds."""
    run = Run(Policy(1, 8))
    run.last_of(20, backlog(0), Workers(1), start_s=60.0)
    assert run.last_of(6, backlog(1000), Workers(1), start_s=60.0).desired == 1


@pytest.mark.parametrize(
    ("maximum", "partitions", "busy", "desired"),
    [
        (4, 12, 12, 4),
        (64, 12, 12, 12),
        (64, 12, 2, 3),
        (64, 2, 2, 2),
    ],
)
def test_never_more_than_can_help(maximum: int, partitions: int, busy: int, desired: int) -> None:
    """At most MAX, the number of partitions, and one more than there are partitions with work."""
    work = Backlog(1000, 10**6, partitions, busy)
    assert desired == Run(Policy(0, maximum)).ask(work, Workers(1)).desired


def test_without_a_lag_the_number_is_held() -> None:
    """Also for hours; nothing is scaled on nothing."""
    verdict = Run(Policy(0, 4)).last_of(3600, None, Workers(3))
    assert Verdict(3, "the lag is unknown") == verdict


def test_without_a_lag_there_are_min_workers() -> None:
    """They are wanted whatever the lag is."""
    assert Verdict(2, "at least 2") == Run(Policy(2, 4)).ask(None, Workers(0))


def test_what_was_unknown_does_not_count_as_quiet() -> None:
    """After a gap in the readings the window begins again."""
    run = Run(Policy(0, 4))
    assert run.last_of(50, backlog(0), Workers(1)).desired == 1
    run.ask(None, Workers(1))
    assert run.last_of(50, backlog(0), Workers(1)).desired == 1
    assert run.last_of(14, backlog(0), Workers(1)).desired == 0


def test_to_zero_only_when_nothing_was_unfinished_for_a_window() -> None:
    """A request that runs counts until its offset is committed."""
    run = Run(Policy(0, 4))
    assert run.last_of(300, backlog(300, records=1), Workers(1)).desired == 1
    assert run.last_of(58, backlog(0), Workers(1)).desired == 1
    assert Verdict(0, "nothing unfinished for 60 s") == run.last_of(6, backlog(0), Workers(1))


def test_min_workers_stay_when_nothing_is_left() -> None:
    """They are there for the next request."""
    assert Run(Policy(1, 4)).last_of(600, backlog(0), Workers(1)).desired == 1


@pytest.mark.parametrize(
    ("count", "tokens", "enough", "left"),
    [(2, 900, "1 was", 1), (3, 900, "1 was", 2), (12, 1900, "2 were", 7)],
)
def test_half_of_those_that_are_too_many_go(
    count: int, tokens: int, enough: str, left: int
) -> None:
    """At least one, after the window; the line names what was enough."""
    verdict = Run(Policy(0, 12)).last_of(64, backlog(tokens), Workers(count))
    assert verdict == Verdict(left, f"{enough} enough for 60 s")


def test_workers_stay_while_the_work_that_is_done_needs_them() -> None:
    """A small backlog is what two workers that are busy keep small."""
    run = Run(Policy(0, 4))
    assert run.last_of(300, backlog(500), Workers(2), rate_tok_s=120.0).desired == 2
    assert run.last_of(64, backlog(500), Workers(2), rate_tok_s=80.0).desired == 1


def test_what_was_done_lately_keeps_nobody_when_nothing_is_left() -> None:
    """The rate is a mean over some time, and so late."""
    run = Run(Policy(0, 4))
    run.last_of(100, backlog(500), Workers(1), rate_tok_s=80.0)
    assert run.last_of(64, backlog(0), Workers(1), rate_tok_s=80.0).desired == 0


@pytest.mark.parametrize(
    "workers",
    [Workers(2, draining=1), Workers(1, (1000.0,))],
    ids=["one drains", "one starts"],
)
def test_nobody_goes_while_somebody_comes_or_goes(workers: Workers) -> None:
    """One rebalance at a time."""
    assert Run(Policy(0, 4)).last_of(200, backlog(0), workers).desired == 2


def test_nobody_goes_just_after_a_rebalance() -> None:
    """The join of a worker: thirty seconds."""
    run = Run(Policy(0, 4))
    run.last_of(100, backlog(0), Workers(1, (1000.0,)))
    assert run.last_of(28, backlog(0), Workers(2)).desired == 2
    assert run.last_of(6, backlog(0), Workers(2)).desired == 1


def test_a_start_that_never_ends_holds_nothing_back_for_ever() -> None:
    """After five minutes it counts as stuck."""
    run = Run(Policy(0, 4))
    workers = Workers(1, (run.now_s,))
    assert run.last_of(298, backlog(0), workers).desired == 2
    assert run.last_of(4, backlog(0), workers).desired == 1


def test_workers_are_not_added_twice_in_a_moment() -> None:
    """Those who come together cost one rebalance."""
    run = Run(Policy(0, 8))
    assert run.ask(backlog(2000), Workers(1)).desired == 2
    workers = Workers(1, (run.now_s,))
    assert run.ask(backlog(5000), workers).desired == 2
    assert run.last_of(8, backlog(5000), workers).desired == 5


def test_nobody_is_added_just_after_a_rebalance() -> None:
    """For a moment nobody runs anything, and the backlog looks larger than it is."""
    run = Run(Policy(0, 8))
    run.last_of(20, backlog(1900), Workers(3))
    assert run.last_of(10, backlog(2900), Workers(2)).desired == 2
    assert run.ask(backlog(2900), Workers(2)).desired == 3


def test_workers_that_start_slowly_are_added_in_larger_steps() -> None:
    """A start takes two minutes: a quarter of that is between two decisions."""
    run = Run(Policy(0, 8))
    assert run.ask(backlog(2000), Workers(1), start_s=120.0).desired == 2
    workers = Workers(1, (run.now_s,))
    assert run.last_of(28, backlog(5000), workers, start_s=120.0).desired == 2
    assert run.ask(backlog(5000), workers, start_s=120.0).desired == 5
