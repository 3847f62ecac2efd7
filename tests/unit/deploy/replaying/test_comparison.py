"""Two answers to one request: exact, different from which token on, or not comparable and why."""

import pytest

from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.comparison import (
    EXACT,
    Outcome,
    Reason,
    Verdict,
    compare,
    token_at,
)
from headrace.schemas.errors import ErrorCode
from headrace.schemas.request import DecodedRequest
from tests.replayed_answers import answer, failed, of_events, request, texts_of, writer

GREEDY = request(temperature=0)
TURN = request(key=b"s", temperature=0)


def verdict(
    recorded: Answer | None, answered: Answer | None, asked: DecodedRequest = GREEDY
) -> Verdict:
    return compare(asked, recorded, answered, texts_of)


def told(found: Verdict) -> tuple[Outcome, Reason | None]:
    return found.outcome, found.reason


@pytest.mark.parametrize("with_ids", [True, False])
def test_the_same_tokens_are_exact(with_ids: bool) -> None:
    """Also where the recording does not tell its tokens: the text is the same, and the number."""
    recorded = answer([1, 2, 3, 0], with_ids=with_ids)
    assert verdict(recorded, answer([1, 2, 3, 0])) == EXACT


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize(
    ("recorded", "answered", "token"),
    [
        ([1, 2, 3, 4, 0], [1, 2, 5, 4, 0], 2),
        ([1, 2, 3, 4, 0], [1, 2, 3, 0], 3),
        ([1, 2, 3, 0], [1, 2, 3, 4, 0], 3),
        ([0], [1, 0], 0),
        ([1, 0], [0], 0),
    ],
)
def test_the_first_token_that_differs(
    recorded: list[int], answered: list[int], token: int, with_ids: bool
) -> None:
    """Found by the text where the recording has no tokens; the end of a turn is one."""
    found = verdict(answer(recorded, with_ids=with_ids), answer(answered))
    assert told(found) == (Outcome.DIFFERENT, Reason.TOKENS)
    assert found.parting is not None
    assert found.parting.token == token


def test_the_texts_around_the_difference() -> None:
    """Of both, on one line."""
    found = verdict(answer([1, 2, 3, 0]), answer([1, 2, 4, 0]))
    assert found.parting is not None
    assert (found.parting.recorded, found.parting.answered) == ("abc", "abd")


def test_other_tokens_with_the_same_text_are_different() -> None:
    """Where both tell their tokens."""
    one, other = answer([1, 2, 0]), answer([1, 2, 0])
    other.ids = [7, 0]
    assert told(verdict(one, other)) == (Outcome.DIFFERENT, Reason.TOKENS)


def test_another_end_is_different() -> None:
    """The same text, but it was cut by the limit, or one more token came."""
    recorded = answer([1, 2], with_ids=False)
    limited = answer([1, 2], reason="length")
    longer = answer([1, 2, 0])
    assert told(verdict(recorded, limited)) == (Outcome.DIFFERENT, Reason.END)
    assert told(verdict(recorded, longer)) == (Outcome.DIFFERENT, Reason.END)


@pytest.mark.parametrize("with_ids", [True, False])
def test_of_a_cancelled_answer_its_beginning_is_compared(with_ids: bool) -> None:
    """The new answer goes on behind it."""
    recorded = answer([1, 2], reason="cancelled", with_ids=with_ids)
    assert verdict(recorded, answer([1, 2, 3, 0])) == EXACT
    assert told(verdict(recorded, answer([1, 3, 3, 0]))) == (Outcome.DIFFERENT, Reason.TOKENS)
    assert told(verdict(recorded, answer([1]))) == (Outcome.DIFFERENT, Reason.TOKENS)


def test_a_shadow_may_be_cancelled_earlier_or_later() -> None:
    """Both have the same cancel, at another moment."""
    assert verdict(answer([1, 2, 3], reason="cancelled"), answer([1], reason="cancelled")) == EXACT
    assert verdict(answer([1, 2, 0]), answer([1], reason="cancelled")) == EXACT


def test_half_a_character_of_a_cancelled_answer_is_no_difference() -> None:
    """It is shown as U+FFFD there; the new answer completes it."""
    recorded = answer([1, 2], reason="cancelled", with_ids=False)
    recorded.texts.append("\ufffd")
    assert verdict(recorded, answer([1, 2, 3, 0])) == EXACT


@pytest.mark.parametrize(
    ("recorded", "answered", "expected"),
    [
        (None, answer([0]), (Outcome.NOT_COMPARABLE, Reason.NOT_RECORDED)),
        (Answer(), answer([0]), (Outcome.NOT_COMPARABLE, Reason.NOT_FINISHED)),
        (failed(ErrorCode.EXPIRED), answer([0]), (Outcome.NOT_COMPARABLE, Reason.EXPIRED)),
        (answer([0]), failed(ErrorCode.EXPIRED), (Outcome.NOT_COMPARABLE, Reason.EXPIRED)),
        (
            answer([], reason="cancelled", prompt_tokens=0),
            answer([1, 0]),
            (Outcome.NOT_COMPARABLE, Reason.CANCELLED),
        ),
        (
            failed(ErrorCode.MODEL_NOT_FOUND),
            answer([0]),
            (Outcome.NOT_COMPARABLE, Reason.MODEL_NAME),
        ),
        (answer([0]), None, (Outcome.DIFFERENT, Reason.UNANSWERED)),
        (answer([0]), Answer(), (Outcome.DIFFERENT, Reason.UNANSWERED)),
        (failed(ErrorCode.INVALID_VALUE), failed(ErrorCode.INVALID_VALUE), (Outcome.EXACT, None)),
        (
            failed(ErrorCode.INVALID_VALUE),
            failed(ErrorCode.INTERNAL_ERROR),
            (Outcome.DIFFERENT, Reason.ERROR),
        ),
        (failed(ErrorCode.OVERLOADED), answer([0]), (Outcome.DIFFERENT, Reason.ERROR)),
        (answer([0]), failed(ErrorCode.INVALID_VALUE), (Outcome.DIFFERENT, Reason.ERROR)),
        (
            answer([0]),
            failed(ErrorCode.SESSION_OUT_OF_SYNC),
            (Outcome.DIFFERENT, Reason.ERROR),
        ),
        (answer([0], prompt_tokens=4), answer([0]), (Outcome.DIFFERENT, Reason.PROMPT)),
    ],
)
def test_what_else_can_be(
    recorded: Answer | None, answered: Answer | None, expected: tuple[Outcome, Reason | None]
) -> None:
    """Errors by their codes; what the recording does not say is not held against the answer."""
    assert told(verdict(recorded, answered)) == expected


def test_a_conversation_that_began_before_the_range() -> None:
    """Another prompt, or a refusal, is no wonder; the same prompt is compared."""
    other_prompt = verdict(answer([0], prompt_tokens=9), answer([0]), TURN)
    assert told(other_prompt) == (Outcome.NOT_COMPARABLE, Reason.HISTORY)
    assert other_prompt.detail == "9 -> 3 prompt tokens"
    refused = verdict(answer([0]), failed(ErrorCode.SESSION_OUT_OF_SYNC), TURN)
    assert told(refused) == (Outcome.NOT_COMPARABLE, Reason.HISTORY)
    assert verdict(answer([1, 0]), answer([1, 0]), TURN) == EXACT


def test_a_prompt_of_the_same_length_is_told_as_that() -> None:
    """Two equal numbers would say nothing."""
    answered = answer([0])
    answered.prompt_ids = [8, 8, 8]
    found = verdict(answer([0]), answered)
    assert told(found) == (Outcome.DIFFERENT, Reason.PROMPT)
    assert found.detail == "3 prompt tokens: same length, other tokens"


def test_an_unknown_seed_is_not_comparable() -> None:
    """A greedy answer does not hang on it."""
    sampled = request(temperature=1.0)
    recorded, answered = answer([1, 0], seed=1), answer([2, 0], seed=2)
    assert told(verdict(recorded, answered, sampled)) == (Outcome.NOT_COMPARABLE, Reason.SEED)
    assert told(verdict(recorded, answered)) == (Outcome.DIFFERENT, Reason.TOKENS)


@pytest.mark.parametrize(
    ("texts", "position", "token"),
    [
        (["ab", "c", ""], 0, 0),
        (["ab", "c", ""], 1, 0),
        (["ab", "c", ""], 2, 1),
        (["ab", "c", ""], 3, 2),
        (["", "", "é"], 0, 2),
        (["", "", "é"], 1, 3),
        ([], 0, 0),
    ],
)
def test_the_token_of_a_character(texts: list[str], position: int, token: int) -> None:
    """Half characters belong to the token that completes them."""
    assert token_at(texts, position) == token


def test_events_of_an_attempt_that_was_given_up_do_not_count() -> None:
    """The reader's rule; events that come twice neither."""
    first = writer(attempt=1).chunk(0, "x", token_ids=[7])
    again = writer(attempt=2).chunk(0, "a", token_ids=[1])
    more = writer(attempt=2).chunk(1, "b", token_ids=[2])
    found = of_events(first, again, again, more, first)
    assert (found.text, found.ids) == ("ab", [1, 2])


def test_tokens_are_known_only_if_every_event_tells_them() -> None:
    """One without leaves a hole."""
    found = of_events(writer().chunk(0, "a", token_ids=[1]), writer().chunk(1, "b"))
    assert found.ids is None
    late = of_events(writer().chunk(0, "a"), writer().chunk(1, "b", token_ids=[1]))
    assert late.ids is None


def test_a_gap_leaves_an_answer_without_end() -> None:
    """Retention has deleted its beginning."""
    whole = answer([1, 2, 0])
    assert whole.finished
    found = of_events(writer().chunk(2, "c"))
    assert (found.finished, found.text) == (False, "")
