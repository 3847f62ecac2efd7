"""What a comparison came to: counts, pass or fail, the rows that differ; as values and as JSON.

Owns the threshold of the gate. How it is printed or drawn is others'.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.comparison import Outcome, Reason
from headrace.deploy.replaying.engine_info import EngineInfo
from headrace.deploy.replaying.judging import Row

MAX_SHOWN = 10
"""Requests that differ, in a report for people; a file has all of them."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The largest shares of the compared answers that may differ, and the least number compared."""

    allow_drift: float = 0.0
    allow_different: float = 0.0
    min_compared: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a replay or a shadow, counted."""

    rows: Sequence[Row]
    gate: Gate
    engine: EngineInfo | None = None
    """What answered now; None where only the answers tell."""
    interrupted: bool = False
    """Whether it ended before its time; then it does not pass."""

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(row.verdict.outcome for row in self.rows)

    @property
    def reasons(self) -> Counter[Reason]:
        """Why requests were not comparable."""
        return Counter(
            row.verdict.reason
            for row in self.rows
            if row.verdict.outcome is Outcome.NOT_COMPARABLE and row.verdict.reason
        )

    @property
    def num_compared(self) -> int:
        return len(self.rows) - self.counts[Outcome.NOT_COMPARABLE]

    @property
    def differing(self) -> list[Row]:
        """Those that drifted or are different."""
        wanted = (Outcome.DRIFT, Outcome.DIFFERENT)
        return [row for row in self.rows if row.verdict.outcome in wanted]

    @property
    def problem(self) -> str | None:
        """Why it does not pass; None where it does."""
        found = ["interrupted"] if self.interrupted else []
        return "; ".join(found + ([self._beyond_gate] if self._beyond_gate else [])) or None

    @property
    def _beyond_gate(self) -> str | None:
        if self.num_compared < self.gate.min_compared:
            found, needed = self.num_compared, self.gate.min_compared
            return f"{found} answers could be compared, fewer than {needed}"
        for outcome, allowed in (
            (Outcome.DIFFERENT, self.gate.allow_different),
            (Outcome.DRIFT, self.gate.allow_drift),
        ):
            count = self.counts[outcome]
            if count > allowed * self.num_compared:
                share = f"{count} of {self.num_compared} compared answers: {outcome}"
                return f"{share}; {allowed:.2%} may be" if allowed else share
        return None

    def fingerprints(self) -> tuple[list[str], list[str]]:
        """Those of the recorded answers, and those of the new ones."""
        recorded = _fingerprints(row.recorded for row in self.rows)
        return recorded, _fingerprints(row.answered for row in self.rows)

    def models(self) -> tuple[str, str]:
        """What the recorded answers name, and what answers now, in words for people."""
        recorded = ", ".join(_models(row.recorded for row in self.rows)) or "unknown"
        now = ", ".join(_models(row.answered for row in self.rows)) or "unknown"
        return recorded, now if self.engine is None else str(self.engine)

    def as_json(self) -> dict[str, Any]:
        """The report of `--json`, without what only the run knows."""
        recorded, now = self.fingerprints()
        return {
            "passed": self.problem is None,
            "problem": self.problem,
            "requests": len(self.rows),
            "compared": self.num_compared,
            "exact": self.counts[Outcome.EXACT],
            "numeric_drift": self.counts[Outcome.DRIFT],
            "different": self.counts[Outcome.DIFFERENT],
            "not_comparable": self.counts[Outcome.NOT_COMPARABLE],
            "not_comparable_because": {str(reason): n for reason, n in self.reasons.items()},
            "fingerprints": {"recorded": recorded, "now": now},
            "models": {
                "recorded": _models(row.recorded for row in self.rows),
                "now": _models(row.answered for row in self.rows),
            },
            "engine": None if self.engine is None else asdict(self.engine),
            "interrupted": self.interrupted,
            "first_differing": [row_json(row) for row in self.differing[:MAX_SHOWN]],
        }


def row_json(row: Row, *, texts: bool = False) -> dict[str, Any]:
    """One request; with both `texts` in full where they are not the same."""
    verdict, parting = row.verdict, row.verdict.parting
    found: dict[str, Any] = {
        "request_id": row.asked.request_id,
        "session_id": row.asked.session_id,
        "tenant": row.asked.tenant,
        "source": row.asked.origin.default_id,
        "outcome": str(verdict.outcome),
        "reason": None if verdict.reason is None else str(verdict.reason),
        "detail": verdict.detail,
        "first_differing_token": None if parting is None else parting.token,
        "around": None if parting is None else [parting.recorded, parting.answered],
        "recorded": _answer_json(row.recorded),
        "now": _answer_json(row.answered),
    }
    if texts and verdict.outcome is not Outcome.EXACT:
        found["texts"] = [answer and answer.text for answer in (row.recorded, row.answered)]
    return found


def _answer_json(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {
        "finish_reason": answer.finish_reason,
        "error_code": answer.error_code,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "seed": answer.seed,
        "system_fingerprint": answer.fingerprint,
        "model": answer.model,
        "work_ms": answer.work_ms,
    }


def _models(answers: Iterable[Answer | None]) -> list[str]:
    return sorted({answer.model for answer in answers if answer and answer.model})


def _fingerprints(answers: Iterable[Answer | None]) -> list[str]:
    return sorted({answer.fingerprint for answer in answers if answer and answer.fingerprint})
