"""The reader's rule of contract §3, case by case."""

from typing import Any

import pytest

from headrace.schemas.reply import ReplyReader, Seen, event_text, is_last


def event(attempt: int, number: int, *, last: bool = False) -> dict[str, Any]:
    choice = {"delta": {"content": "x"}, "finish_reason": "stop" if last else None}
    return {
        "object": "chat.completion.chunk",
        "attempt": attempt,
        "sequence_number": number,
        "choices": [choice],
    }


def seen(reader: ReplyReader, *events: dict[str, Any]) -> list[Seen]:
    return [reader.see(item) for item in events]


def test_each_event_is_new_once() -> None:
    """What comes again is old."""
    first, second = event(7, 0), event(7, 1)
    found = seen(ReplyReader(), first, first, second, first, second)
    assert found == [Seen.NEW, Seen.OLD, Seen.NEW, Seen.OLD, Seen.OLD]


def test_a_larger_attempt_restarts_and_a_smaller_one_is_old() -> None:
    """Only after the journal was lost."""
    found = seen(ReplyReader(), event(7, 0), event(9, 0), event(7, 1), event(9, 1))
    assert found == [Seen.NEW, Seen.RESTART, Seen.OLD, Seen.NEW]


def test_nothing_follows_the_last_event() -> None:
    """Not even a larger attempt."""
    reader = ReplyReader()
    found = seen(reader, event(7, 0, last=True), event(7, 1), event(9, 0))
    assert found == [Seen.NEW, Seen.OLD, Seen.OLD]
    assert reader.finished


@pytest.mark.parametrize("attempt", [7, 9])
def test_a_gap_changes_nothing(attempt: int) -> None:
    """When the missing ones are read, the event fits."""
    reader = ReplyReader()
    seen(reader, event(7, 0))
    late = event(attempt, 2)
    assert reader.see(late) is Seen.GAP
    assert (reader.attempt, reader.next_number) == (7, 1)
    missing = [event(attempt, number) for number in range(2)]
    assert Seen.GAP not in seen(reader, *missing, late)


def test_a_first_event_with_another_number_is_a_gap() -> None:
    """The reader came too late and must read the log."""
    assert ReplyReader().see(event(7, 3)) is Seen.GAP


def test_starting_after_drops_what_the_reader_has() -> None:
    """`starting_after=N` of the gateway."""
    reader = ReplyReader(starting_after=1)
    found = seen(reader, *(event(7, number) for number in range(3)), event(9, 0))
    assert found == [Seen.OLD, Seen.OLD, Seen.NEW, Seen.RESTART]


@pytest.mark.parametrize("starting_after", [1, 5])
def test_a_reader_that_has_the_last_event_is_finished(starting_after: int) -> None:
    """Regression: resuming after the last event waited for ever."""
    reader = ReplyReader(starting_after=starting_after)
    assert seen(reader, event(7, 0), event(7, 1, last=True)) == [Seen.OLD, Seen.OLD]
    assert reader.finished


def test_a_reader_that_knows_its_attempt_ignores_smaller_ones() -> None:
    """A cursor holds both numbers."""
    reader = ReplyReader(starting_after=0, attempt=9)
    found = seen(reader, event(7, 0), event(7, 1, last=True), event(9, 0), event(9, 1))
    assert found == [Seen.OLD, Seen.OLD, Seen.OLD, Seen.NEW]
    assert ReplyReader(starting_after=3, attempt=7).see(event(9, 0)) is Seen.RESTART


def test_text_and_end_of_each_kind_of_event() -> None:
    """A chunk, a whole message, a failure."""
    message = {"message": {"content": "whole"}, "finish_reason": "stop"}
    whole = {"object": "chat.completion", "choices": [message]}
    failed = {"object": "error", "error": {}}
    assert [event_text(item) for item in (event(7, 0), whole, failed)] == ["x", "whole", ""]
    assert [is_last(item) for item in (event(7, 0), whole, failed)] == [False, True, True]
