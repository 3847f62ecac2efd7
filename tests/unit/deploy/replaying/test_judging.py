"""Verdicts along conversations: what an earlier difference makes of later turns; what may drift."""

from collections.abc import Callable

from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.comparison import Outcome, Reason
from headrace.deploy.replaying.judging import Judge, Row
from tests.replayed_answers import answer, request, texts_of

TURN = request(key=b"s", temperature=0)
ALONE = request(temperature=0)
WHOLE = request(key=b"s", temperature=0, context="replace")
OTHER = request(key=b"other", temperature=0)


def judge(drift_of: Callable[[Row], str | None] = lambda row: None) -> Judge:
    return Judge(texts_of, drift_of)


def same() -> tuple[Answer, Answer]:
    return answer([1, 0]), answer([1, 0])


def other(fingerprint: str = "f") -> tuple[Answer, Answer]:
    return answer([1, 0]), answer([2, 0], fingerprint=fingerprint)


def test_a_turn_behind_a_difference_is_not_comparable() -> None:
    """It answers another conversation; the first difference counts."""
    judging = judge()
    assert judging.judge(TURN, *same()).verdict.outcome is Outcome.EXACT
    assert judging.judge(TURN, *other()).verdict.outcome is Outcome.DIFFERENT
    later = judging.judge(TURN, *other()).verdict
    assert (later.outcome, later.reason) == (Outcome.NOT_COMPARABLE, Reason.EARLIER_TURN)
    assert judging.judge(TURN, *same()).verdict.outcome is Outcome.EXACT


def test_other_sessions_and_whole_conversations_are_judged_by_themselves() -> None:
    """A turn that brings its whole conversation starts the session anew."""
    judging = judge()
    judging.judge(TURN, *other())
    assert judging.judge(OTHER, *other()).verdict.outcome is Outcome.DIFFERENT
    assert judging.judge(WHOLE, *same()).verdict.outcome is Outcome.EXACT
    assert judging.judge(TURN, *other()).verdict.outcome is Outcome.DIFFERENT


def test_a_turn_behind_a_cancelled_one_is_not_comparable() -> None:
    """The replay was not cancelled, so its conversation is longer."""
    judging = judge()
    cancelled = answer([1], reason="cancelled")
    assert judging.judge(TURN, cancelled, answer([1, 2, 0])).verdict.outcome is Outcome.EXACT
    assert judging.judge(TURN, *other()).verdict.reason is Reason.EARLIER_TURN


def test_another_prompt_behind_a_difference_is_that_differences() -> None:
    """The conversation is not missing: it has become another one."""
    judging = judge()
    assert judging.judge(TURN, *other()).verdict.outcome is Outcome.DIFFERENT
    longer = answer([1, 0], prompt_tokens=9)
    later = judging.judge(TURN, longer, answer([1, 0])).verdict
    assert (later.outcome, later.reason) == (Outcome.NOT_COMPARABLE, Reason.EARLIER_TURN)
    assert later.detail == "9 -> 3 prompt tokens"


def test_behind_a_missing_beginning_all_turns_lack_it() -> None:
    """No turn in the range is to blame."""
    judging = judge()
    for _ in range(2):
        found = judging.judge(TURN, answer([1, 0], prompt_tokens=9), answer([1, 0])).verdict
        assert (found.outcome, found.reason) == (Outcome.NOT_COMPARABLE, Reason.HISTORY)
    assert judging.judge(TURN, *other()).verdict.reason is Reason.HISTORY


def test_no_answer_is_no_answer_wherever_it_stands() -> None:
    """A worker that hangs must not hide behind an earlier difference."""
    judging = judge()
    judging.judge(TURN, *other())
    assert judging.judge(TURN, answer([1, 0]), None).verdict.reason is Reason.UNANSWERED


def test_a_near_tie_is_drift_between_two_fingerprints_only() -> None:
    """Equal fingerprints promise equal tokens."""
    judging = judge(lambda row: "logit gap 0.1")
    drifted = judging.judge(ALONE, *other("g")).verdict
    assert (drifted.outcome, drifted.detail) == (Outcome.DRIFT, "logit gap 0.1")
    assert judging.judge(ALONE, *other("f")).verdict.outcome is Outcome.DIFFERENT
    assert judge().judge(ALONE, *other("g")).verdict.outcome is Outcome.DIFFERENT


def test_only_other_tokens_can_drift() -> None:
    """Another prompt or end has other causes."""
    judging = judge(lambda row: "logit gap 0.1")
    recorded = answer([1, 0], prompt_tokens=9)
    found = judging.judge(ALONE, recorded, answer([2, 0], fingerprint="g")).verdict
    assert (found.outcome, found.reason) == (Outcome.DIFFERENT, Reason.PROMPT)


def test_drift_changes_the_conversation() -> None:
    """As any other difference does."""
    judging = judge(lambda row: "logit gap 0.1")
    assert judging.judge(TURN, *other("g")).verdict.outcome is Outcome.DRIFT
    assert judging.judge(TURN, *other("g")).verdict.reason is Reason.EARLIER_TURN
