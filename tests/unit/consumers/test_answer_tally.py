"""What a gateway counts of the answers in its log."""

from typing import Any

import orjson
import pytest

from headrace.consumers.answer_tally import MAX_OPEN, SILENT_S, AnswerTally
from headrace.consumers.log_event import LogEvent
from headrace.schemas.errors import ErrorCode, RequestError
from tests.unit.consumers.doubles import answer, completion, failure, writer


def logged(value: bytes, *, tenant: str = "default") -> LogEvent:
    event: dict[str, Any] = orjson.loads(value)
    return LogEvent(0, 0, tenant, None, event, ())


@pytest.fixture
def tally() -> AnswerTally:
    return AnswerTally()


def show(tally: AnswerTally, values: list[bytes]) -> None:
    for value in values:
        tally.add(logged(value))


def test_an_answer_is_open_from_its_first_event_to_its_last(tally: AnswerTally) -> None:
    """Also one of the same id of another tenant."""
    events = answer("r", "s", ["a ", "b ", "c"])
    tally.add(logged(events[0]))
    tally.add(logged(events[0], tenant="other"))
    assert tally.num_open == 2
    show(tally, events[1:])
    assert tally.num_open == 1


def test_tokens_are_estimated_while_they_come_and_exact_at_the_end(tally: AnswerTally) -> None:
    """A first guess of four characters a token; `usage` puts it right."""
    events = answer("r", "s", ["12345678", "1234", "1234"])
    show(tally, events[:2])
    assert tally.num_tokens == pytest.approx(3.0)
    show(tally, events[2:])
    assert tally.num_tokens == completion().usage.completion_tokens


def test_the_count_never_goes_down(tally: AnswerTally) -> None:
    """An estimate that was too high is made up for by what comes next."""
    events = answer("r", "s", ["x" * 80, "y"])
    show(tally, events[:1])
    assert tally.num_tokens == pytest.approx(20.0)
    show(tally, events[1:])
    assert tally.num_tokens == pytest.approx(20.0)
    for number in range(6):
        show(tally, answer(f"r{number}", "s", ["abc"]))
    assert tally.num_tokens == pytest.approx(7 * 3.0)


def test_an_answer_seen_from_its_middle_counts_what_was_seen(tally: AnswerTally) -> None:
    """A gateway that has just started does not count the minutes before."""
    show(tally, answer("r", "s", ["x" * 4_000, "y" * 4])[1:])
    assert tally.num_tokens == pytest.approx(1.0)


def test_a_failed_answer_ends(tally: AnswerTally) -> None:
    """It has no usage."""
    error = RequestError(ErrorCode.INTERNAL_ERROR, "no")
    show(tally, [*answer("r", "s", ["abcd", "e"])[:1], failure("r", "s", error, number=1)])
    assert tally.num_open == 0
    assert tally.num_tokens == pytest.approx(1.0)


def test_a_silent_answer_is_not_open_for_ever() -> None:
    """Its worker is gone, and no other one there."""
    now_s = [0.0]
    tally = AnswerTally(clock=lambda: now_s[0])
    tally.add(logged(writer("r", "s").chunk(0, "a").value))
    now_s[0] = SILENT_S
    tally.add(logged(writer("q", "s").chunk(0, "a").value))
    assert tally.num_open == 2
    now_s[0] += 1
    assert tally.num_open == 1


def test_what_is_remembered_is_bounded(tally: AnswerTally) -> None:
    """Answers without an end do not fill the memory."""
    for number in range(MAX_OPEN + 5):
        tally.add(logged(writer(f"r{number}", "s").chunk(0, "a").value))
    assert tally.num_open == MAX_OPEN
