"""Measured processes: the protocol between a benchmark and its engines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.child import Run
from benchmarks.lib.process import (
    ChildEngine,
    ChildFailedError,
    NotInstalledError,
    Repetition,
    Spec,
)


def spec(**config: Any) -> Spec:
    return Spec("counting", "tests.unit.benchmarks.counting_engine", config)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "engines.log"


@pytest.fixture
def engine(log_path: Path) -> Iterator[ChildEngine]:
    engine = ChildEngine(spec(), log_path)
    yield engine
    engine.close()


def test_answers_come_over_what_libraries_print(engine: ChildEngine, log_path: Path) -> None:
    """A library that prints to stdout does not break the protocol; its words are in the log."""
    done = engine.run([[1, 2], [3]], 2)
    assert engine.versions == {"counting": "1"}
    assert done.run.token_times_s == [[0.005, 0.01], [0.005, 0.01]]
    engine.close()
    assert "noise on stdout" in log_path.read_text("utf-8")


def test_a_missing_library_is_said_by_its_name(log_path: Path) -> None:
    """An engine whose library is not in its environment is not a failure."""
    with pytest.raises(NotInstalledError, match="fastest_engine"):
        ChildEngine(spec(missing="fastest_engine"), log_path)


def test_an_engine_that_dies_is_a_failure(log_path: Path) -> None:
    """A process that ends before it answers is reported, with the place of its log."""
    with pytest.raises(ChildFailedError, match=r"engines\.log"):
        ChildEngine(spec(dies=True), log_path)


def test_an_engine_that_loses_tokens_has_no_figure(log_path: Path) -> None:
    """A run that gave another number of tokens than asked for does not count as a fast one."""
    engine = ChildEngine(spec(lost=1), log_path)
    with pytest.raises(ChildFailedError, match="gave 3 tokens"):
        engine.run([[1], [2]], 2)
    engine.close()


@pytest.mark.parametrize(
    ("elapsed_s", "others_s", "is_disturbed"),
    [(0.1, 0.05, False), (0.1, 0.06, True), (10.0, 0.6, False), (10.0, 0.7, True)],
)
def test_a_run_is_disturbed_by_others_beyond_the_grain(
    elapsed_s: float, others_s: float, *, is_disturbed: bool
) -> None:
    """Short runs have the clock's grain for free, long ones 6 % of a core."""
    assert is_disturbed == Repetition(Run(0.1, 1), elapsed_s, others_s).is_disturbed
