"""Verdicts on all requests of a recording, conversations in their order.

Pure but for what it is handed. A turn whose conversation has become another cannot be held against
its recording: the first one that differs is what counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.comparison import (
    Outcome,
    Reason,
    TextsOf,
    Verdict,
    compare,
    uses_history,
)
from headrace.schemas.request import DecodedRequest


@dataclass(frozen=True, slots=True)
class Row:
    """One request with both answers and the verdict."""

    asked: DecodedRequest
    recorded: Answer | None
    answered: Answer | None
    verdict: Verdict


DriftCheck = Callable[[Row], bool]
"""Whether the answers part where two tokens were as good as equally likely."""


class Judge:
    """Judges requests in the order in which they were written."""

    def __init__(self, texts_of: TextsOf, is_drift: DriftCheck) -> None:
        self._texts_of, self._is_drift = texts_of, is_drift
        self._changed: set[tuple[str, str]] = set()
        """Sessions that do not hold any more what they held in the recording."""

    def judge(self, asked: DecodedRequest, recorded: Answer | None, answered: Answer | None) -> Row:
        """The next request's row. Raises: what the check for drift raises."""
        row = Row(asked, recorded, answered, compare(asked, recorded, answered, self._texts_of))
        session = (asked.tenant, asked.session_id)
        if not uses_history(asked):
            self._changed.discard(session)
        if session in self._changed:
            row = replace(row, verdict=_behind_a_change(row.verdict))
        elif may_be_drift(row) and self._is_drift(row):
            row = replace(row, verdict=replace(row.verdict, outcome=Outcome.DRIFT))
        if _changes_the_session(row):
            self._changed.add(session)
        return row


def may_be_drift(row: Row) -> bool:
    """Whether rounding may be the cause; never where equal fingerprints promise equal tokens."""
    recorded, answered, verdict = row.recorded, row.answered, row.verdict
    if verdict.outcome is not Outcome.DIFFERENT or verdict.reason is not Reason.TOKENS:
        return False
    if recorded is None or answered is None:
        return False
    return recorded.fingerprint != answered.fingerprint


def _behind_a_change(verdict: Verdict) -> Verdict:
    if verdict.outcome is not Outcome.DIFFERENT or verdict.reason is Reason.UNANSWERED:
        return verdict
    return Verdict(Outcome.NOT_COMPARABLE, Reason.EARLIER_TURN, verdict.detail, verdict.parting)


def _changes_the_session(row: Row) -> bool:
    """Whether what the two sessions hold behind this turn may be two things."""
    if row.verdict.outcome is not Outcome.EXACT:
        return True
    ends = [answer.finish_reason for answer in (row.recorded, row.answered) if answer]
    return (
        "cancelled" in ends
        and row.recorded is not None
        and row.answered is not None
        and (row.recorded.completion_tokens != row.answered.completion_tokens)
    )
