"""The last step of a comparison: what is printed and written, and the exit code."""

import json
from pathlib import Path

import pytest

from headrace.deploy.commands.report_flags import Outputs, show
from headrace.deploy.replaying.comparison import EXACT, Outcome, Parting, Reason, Verdict
from headrace.deploy.replaying.judging import Row
from headrace.deploy.replaying.report import Gate
from headrace.deploy.replaying.trial import Trial
from tests.replayed_answers import answer, request

DIFFERENT = Verdict(Outcome.DIFFERENT, Reason.TOKENS, parting=Parting(0, "a", "b"))


def shown(*verdicts: Verdict, rows: Path | None = None, as_json: bool = False) -> int:
    made = [Row(request(), answer([1, 0]), answer([2, 0]), verdict) for verdict in verdicts]
    trial = Trial(made, "live.replay-x", "m", 2, 1.5)
    return show(trial, Gate(), Outputs(None, rows, as_json))


def test_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0; the table on stdout, the verdict on stderr."""
    assert shown(EXACT) == 0
    out, err = capsys.readouterr()
    assert "exact" in out
    assert err == "passed\n"


def test_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and why in one line."""
    assert shown(EXACT, DIFFERENT) == 1
    assert capsys.readouterr().err == "headrace: 1 of 2 compared answers: different\n"


def test_json_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object on stdout; all rows in the file."""
    rows = tmp_path / "rows.jsonl"
    assert shown(EXACT, DIFFERENT, rows=rows, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["passed"], said["namespace"], said["duplicates"]) == (False, "live.replay-x", 2)
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["outcome"] for row in written] == ["exact", "different"]
    assert written[1]["texts"] == ["a", "b"]
