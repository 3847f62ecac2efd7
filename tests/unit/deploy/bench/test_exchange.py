"""One request and its answer: times, tokens, and whether it was right."""

import pytest

from headrace.deploy.bench.exchange import Exchange, Outcome
from tests.loads import chunk, failed, last, turn


def sent(due_s: float = 10.0) -> Exchange:
    return Exchange(turn(due_s), "r", sent_s=due_s + 0.5)


def test_times_count_from_when_it_was_due() -> None:
    """First text, gaps per token, the longest pause."""
    exchange = sent()
    assert exchange.take(chunk(0, ""), 11.0) == 0
    assert exchange.take(chunk(1, "a"), 12.0) == 1
    assert exchange.take(chunk(2, "bcd"), 15.0) == 3
    assert exchange.take(last(3, "e", 5), 16.0) == 1
    assert (exchange.first_s, exchange.ended_s, exchange.lag_s) == (12.0, 16.0, 0.5)
    assert exchange.token_gaps == [(1.0, 3), (1.0, 1)]
    assert exchange.longest_pause_s == 3.0
    assert (exchange.outcome, exchange.num_tokens) == (Outcome.FINISHED, 5)
    assert (exchange.prompt_tokens, exchange.cached_tokens) == (7, 3)


def test_a_token_without_text_is_a_token() -> None:
    """An end of turn, or a piece of a character."""
    exchange = sent()
    exchange.take(chunk(0, "a"), 11.0)
    exchange.take(chunk(1, "", ids=[300]), 13.0)
    exchange.take(last(2, "b", 3), 14.0)
    assert (exchange.outcome, exchange.token_gaps) == (Outcome.FINISHED, [(2.0, 1), (1.0, 1)])


def test_a_repeat_is_dropped() -> None:
    """At-least-once is the contract; `created` and timings may differ."""
    exchange = sent()
    exchange.take(chunk(0, "a"), 11.0)
    assert exchange.take(chunk(0, "a", created=9, timings={"ttft_ms": 1}), 12.0) == 0
    exchange.take(last(1, "b", 2), 13.0)
    assert (exchange.outcome, exchange.num_repeats, exchange.num_events) == (Outcome.FINISHED, 1, 2)


@pytest.mark.parametrize("after_the_end", [False, True])
def test_a_repeat_with_another_content_is_wrong(after_the_end: bool) -> None:
    """Also where the answer seemed to be complete."""
    exchange = sent()
    exchange.take(chunk(0, "a"), 11.0)
    if after_the_end:
        exchange.take(last(1, "b", 2), 12.0)
    exchange.take(chunk(0, "x"), 13.0)
    assert (exchange.outcome, exchange.code) == (Outcome.WRONG, "two_contents")


def test_a_gap_is_wrong() -> None:
    """An event was lost."""
    exchange = sent()
    exchange.take(chunk(0, "a"), 11.0)
    exchange.take(chunk(2, "c"), 12.0)
    assert (exchange.outcome, exchange.code) == (Outcome.WRONG, "events_lost")


def test_tokens_that_are_told_and_did_not_come_are_wrong() -> None:
    """The last event counts what was generated."""
    exchange = sent()
    exchange.take(chunk(0, "a"), 11.0)
    exchange.take(last(1, "b", 3), 12.0)
    assert (exchange.outcome, exchange.code) == (Outcome.WRONG, "tokens_lost")


def test_an_answer_that_begins_again_counts_once() -> None:
    """A larger attempt says the text so far again: its tokens are not new, its first text is not
    either.
    """
    exchange = sent()
    exchange.take(chunk(0, "a"), 11.0)
    exchange.take(chunk(1, "b"), 12.0)
    assert exchange.take(chunk(0, "abc", attempt=2), 14.0) == 1
    assert exchange.take(last(1, "d", 4) | {"attempt": 2}, 15.0) == 1
    assert (exchange.outcome, exchange.num_tokens) == (Outcome.FINISHED, 4)
    assert (exchange.num_restarts, exchange.first_s) == (1, 11.0)
    assert exchange.token_gaps == [(1.0, 1), (2.0, 1), (1.0, 1)]


def test_a_failure_has_its_code() -> None:
    """No text came."""
    exchange = sent()
    exchange.take(failed(0, "expired"), 11.0)
    assert (exchange.outcome, exchange.code) == (Outcome.FAILED, "expired")
    assert (exchange.first_s, exchange.ended_s) == (None, 11.0)


def test_a_cancelled_answer_is_not_a_finished_one() -> None:
    """It is shorter than was asked for."""
    exchange = sent()
    exchange.take(last(0, "a", 1, reason="cancelled"), 11.0)
    assert exchange.outcome is Outcome.CANCELLED


def test_the_first_outcome_stays() -> None:
    """A run that ends says so of what is open only."""
    exchange = sent()
    exchange.take(last(0, "a", 1), 11.0)
    exchange.end(Outcome.UNFINISHED, 20.0)
    assert (exchange.outcome, exchange.ended_s) == (Outcome.FINISHED, 11.0)
