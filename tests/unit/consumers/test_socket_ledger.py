"""Which subscription of a socket hands on which request."""

from typing import Any

import orjson

from headrace.consumers.log_event import LogEvent
from headrace.consumers.socket_ledger import MAX_REMEMBERED, SocketLedger
from headrace.schemas.reply import Seen
from tests.unit.consumers.doubles import answer

WORDS = ["a", "b", "c", "d"]


def events(request_id: str = "r1", *, attempt: int = 1) -> list[LogEvent]:
    values: list[dict[str, Any]] = [
        orjson.loads(value) for value in answer(request_id, "s1", WORDS, attempt=attempt)
    ]
    return [LogEvent(0, place, "default", b"s1", it, ()) for place, it in enumerate(values)]


def test_two_feeds_of_one_session_hand_on_each_event_once() -> None:
    """The first that sees a request owns it."""
    ledger = SocketLedger()
    for event in events():
        assert ledger.judge("one", event) is Seen.NEW
        assert ledger.judge("two", event) is Seen.OLD


def test_a_claim_takes_a_request_over_from_its_place() -> None:
    """The former owner is silent from then on."""
    ledger = SocketLedger()
    seen = events()
    ledger.judge("session", seen[0])
    ledger.claim("request", "r1", "s1", starting_after=1)
    assert [ledger.judge("request", event) for event in seen] == [Seen.OLD] * 2 + [Seen.NEW] * 2
    assert ledger.judge("session", seen[3]) is Seen.OLD
    assert ledger.is_finished("r1")


def test_a_claimed_request_shows_its_gaps_and_a_joined_one_does_not() -> None:
    """Who began at a place misses what is missing; who joined in mid-answer begins there."""
    ledger = SocketLedger()
    ledger.claim("one", "r1", "s1")
    assert ledger.judge("one", events()[2]) is Seen.GAP
    assert ledger.judge("two", events("r2")[1]) is Seen.NEW
    assert ledger.judge("two", events("r2")[3]) is Seen.NEW


def test_after_a_cursor_repeats_are_dropped_and_the_rest_is_strict() -> None:
    """A zombie's repeat right after the cursor does not set the reader back."""
    ledger = SocketLedger()
    seen = events()
    ledger.claim_resumed("one", seen[1])
    assert ledger.judge("one", seen[0]) is Seen.OLD
    assert ledger.judge("one", seen[3]) is Seen.GAP
    assert ledger.judge("one", seen[2]) is Seen.NEW


def test_the_end_of_a_smaller_attempt_is_no_end() -> None:
    """Only the attempt that is followed can end the request."""
    ledger = SocketLedger()
    ledger.claim("one", "r1", "s1")
    assert ledger.judge("one", events(attempt=2)[0]) is Seen.NEW
    late = events(attempt=1)[3]
    assert ledger.judge("one", late) is Seen.OLD
    assert not ledger.is_end(late)
    assert ledger.is_end(events(attempt=2)[3])


def test_what_is_remembered_is_bounded() -> None:
    """A socket that lives for months holds no more than its last thousand requests."""
    ledger = SocketLedger()
    for number in range(MAX_REMEMBERED + 50):
        for event in events(f"r{number}"):
            ledger.judge("one", event)
    assert len(ledger._owned) == MAX_REMEMBERED
