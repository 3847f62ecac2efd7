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


DriftCheck = Callable[[Row], str | None]
"""How near the two tokens are where the answers part, for people; None where they are not as good
as equally likely.
"""


class Judge:
    """Judges requests in the order in which they were written."""

    def __init__(self, texts_of: TextsOf, drift_of: DriftCheck) -> None:
        self._texts_of, self._drift_of = texts_of, drift_of
        self._changed: dict[tuple[str, str], Reason] = {}
        """Sessions that do not hold any more what they held in the recording, and why later turns
        of theirs are not comparable.
        """

    def judge(self, asked: DecodedRequest, recorded: Answer | None, answered: Answer | None) -> Row:
        """The next request's row. Raises: what the check for drift raises."""
        row = Row(asked, recorded, answered, compare(asked, recorded, answered, self._texts_of))
        session = (asked.tenant, asked.session_id)
        if not uses_history(asked):
            self._changed.pop(session, None)
        if session in self._changed:
            row = replace(row, verdict=_behind_a_change(row.verdict, self._changed[session]))
        elif may_be_drift(row) and (margin := self._drift_of(row)) is not None:
            verdict = replace(row.verdict, outcome=Outcome.DRIFT, detail=margin)
            row = replace(row, verdict=verdict)
        if _changes_the_session(row):
            self._changed.setdefault(session, _reason_behind(row.verdict))
        return row


def may_be_drift(row: Row) -> bool:
    """Whether rounding may be the cause; never where equal fingerprints promise equal tokens."""
    recorded, answered, verdict = row.recorded, row.answered, row.verdict
    if verdict.outcome is not Outcome.DIFFERENT or verdict.reason is not Reason.TOKENS:
        return False
    if recorded is None or answered is None:
        return False
    return recorded.fingerprint != answered.fingerprint


def _behind_a_change(verdict: Verdict, reason: Reason) -> Verdict:
    is_different = verdict.outcome is Outcome.DIFFERENT and verdict.reason is not Reason.UNANSWERED
    if not is_different and verdict.reason is not Reason.HISTORY:
        return verdict
    return Verdict(Outcome.NOT_COMPARABLE, reason, verdict.detail, verdict.parting)


def _reason_behind(verdict: Verdict) -> Reason:
    """Why turns behind this one are not comparable."""
    return Reason.HISTORY if verdict.reason is Reason.HISTORY else Reason.EARLIER_TURN


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
