"""A model that is loaded only when somebody asks, and may not be there."""

from pathlib import Path

import pytest

from headrace.deploy.replaying.comparison import Outcome, Parting, Reason, Verdict
from headrace.deploy.replaying.judging import Row
from headrace.deploy.replaying.lazy_model import LazyModel
from headrace.schemas.settings import Settings
from tests.replayed_answers import answer, request

PARTED = Verdict(Outcome.DIFFERENT, Reason.TOKENS, parting=Parting(0, "", ""))


def test_a_model_that_cannot_be_loaded_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights may be too large for this machine; the report must come all the same."""
    (tmp_path / "config.json").write_text("{}")
    model = LazyModel(Settings(model=str(tmp_path)))
    row = Row(request(), answer([1, 0]), answer([2, 0]), PARTED)
    assert [model.drift_of(row) for _ in range(3)] == [None] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("drift is not told from other differences: ModelLoadError(")
