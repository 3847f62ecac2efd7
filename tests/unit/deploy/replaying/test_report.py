"""The counts of a report, its gate, its texts and its picture."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.deploy.replaying.comparison import EXACT, Outcome, Parting, Reason, Verdict
from headrace.deploy.replaying.engine_info import EngineInfo, build_labels
from headrace.deploy.replaying.judging import Row
from headrace.deploy.replaying.report import Gate, Report, row_json
from headrace.deploy.replaying.report_plot import bin_edges, draw_report, plot_report
from headrace.deploy.replaying.report_text import report_text
from tests.replayed_answers import answer, request

PARTING = Parting(7, "the \x1b[2Jcat", "the dog")
DRIFT = Verdict(Outcome.DRIFT, Reason.TOKENS, parting=PARTING)
DIFFERENT = Verdict(Outcome.DIFFERENT, Reason.TOKENS, parting=PARTING)
HISTORY = Verdict(Outcome.NOT_COMPARABLE, Reason.HISTORY)


def report(*verdicts: Verdict, gate: Gate | None = None) -> Report:
    one, other = answer([1, 0]), answer([1, 0], fingerprint="g")
    rows = [Row(request(), one, other, verdict) for verdict in verdicts]
    return Report(rows, gate or Gate())


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (report(EXACT, HISTORY), True),
        (report(EXACT, DRIFT), False),
        (report(EXACT, DIFFERENT), False),
        (report(EXACT, DRIFT, gate=Gate(allow_drift=0.5)), True),
        (report(EXACT, DRIFT, DRIFT, gate=Gate(allow_drift=0.5)), False),
        (report(EXACT, DRIFT, HISTORY, HISTORY, gate=Gate(allow_drift=0.4)), False),
        (report(EXACT, DIFFERENT, gate=Gate(allow_drift=1)), False),
        (report(EXACT, DIFFERENT, gate=Gate(allow_different=0.5)), True),
        (report(HISTORY), False),
        (report(HISTORY, gate=Gate(min_compared=0)), True),
        (report(EXACT, gate=Gate(min_compared=2)), False),
    ],
)
def test_the_gate(found: Report, passes: bool) -> None:
    """Shares are of what could be compared; nothing compared is no pass."""
    assert passes is (found.problem is None)
    assert passes is found.as_json()["passed"]


def test_counts() -> None:
    """Each request is in one of them."""
    said = report(EXACT, EXACT, DRIFT, DIFFERENT, HISTORY).as_json()
    names = ("requests", "compared", "exact", "numeric_drift", "different", "not_comparable")
    assert [said[name] for name in names] == [5, 4, 2, 1, 1, 1]
    assert said["not_comparable_because"] == {"the conversation before it is missing": 1}
    assert said["fingerprints"] == {"recorded": ["f"], "now": ["g"]}
    assert [row["first_differing_token"] for row in said["first_differing"]] == [7, 7]


def test_what_answers_now_stands_beside_its_fingerprint() -> None:
    """With number format and batch size, where our own workers told them."""
    rows = report(EXACT).rows
    told = Report(rows, Gate(), engine=EngineInfo("tiny", "bfloat16", 4))
    lines = report_text(told).splitlines()
    assert "recorded        m, fingerprint f" in lines
    assert "now             tiny bfloat16 batch 4, fingerprint g" in lines
    assert "now             m, fingerprint g" in report_text(report(EXACT)).splitlines()
    said = told.as_json()
    assert said["engine"] == {"model": "tiny", "dtype": "bfloat16", "max_batch_size": 4}
    assert said["models"] == {"recorded": ["m"], "now": ["m"]}


def test_the_worker_tells_what_it_runs() -> None:
    """In its metrics, among others."""
    text = "# TYPE headrace_build_info gauge\n"
    text += 'headrace_build_info{version="1",model="m",dtype="bfloat16",fingerprint="f"} 1.0\n'
    assert build_labels(f"other 1.0\n{text}")["dtype"] == "bfloat16"
    assert build_labels("other 1.0\n") == {}


def test_an_interruption_does_not_pass() -> None:
    """Whatever came of the rest stands behind it."""
    assert Report(report(EXACT).rows, Gate(), interrupted=True).problem == "interrupted"
    both = Report(report(DIFFERENT).rows, Gate(), interrupted=True)
    assert both.problem == "interrupted; 1 of 1 compared answers: different"
    assert not both.as_json()["passed"]


def test_rows_hold_the_texts_where_they_are_wanted() -> None:
    """As JSON that any reader takes."""
    (row,) = report(DIFFERENT).rows
    assert "texts" not in row_json(row)
    assert json.loads(json.dumps(row_json(row, texts=True)))["texts"] == ["a", "a"]


def test_the_table_moves_no_cursor() -> None:
    """Models and clients wrote what is in it."""
    text = report_text(report(EXACT, DIFFERENT, HISTORY))
    assert "\x1b" not in text
    assert "50.00%" in text
    assert "r: different: other tokens, first at token 7" in text
    assert "the conversation before it is missing: 1" in text


def test_a_long_list_is_cut() -> None:
    """And says so."""
    assert "… and 5 more" in report_text(report(*[DIFFERENT] * 15))


@pytest.mark.parametrize("verdicts", [(EXACT,), (HISTORY,), (DRIFT, DIFFERENT)])
def test_a_picture_can_be_drawn_of_any(verdicts: tuple[Verdict, ...], tmp_path: Path) -> None:
    """Also where nothing differs, or nothing was compared."""
    path = tmp_path / "p.png"
    plot_report(report(*verdicts), path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("highest", "width", "number"), [(0, 1, 1), (29, 1, 30), (30, 3, 11), (300, 11, 28)]
)
def test_bins_are_centred_on_whole_numbers(highest: int, width: int, number: int) -> None:
    """All of them are there, in as many as can be told apart."""
    edges = bin_edges(highest)
    assert len(edges) == number + 1
    assert edges[0] == -0.5
    assert edges[-1] > highest
    assert {b - a for a, b in pairwise(edges)} == {width}


def test_the_legend_names_what_is_drawn() -> None:
    """An outcome without a bar is not in it, and both sides are called as in the table."""
    _, partings, times = draw_report(report(EXACT, DRIFT)).axes
    assert [text.get_text() for text in partings.get_legend().get_texts()] == ["numeric drift"]
    assert [text.get_text() for text in times.get_legend().get_texts()] == ["recorded", "now"]


def test_an_empty_panel_has_no_axes() -> None:
    """Only its words."""
    _, partings, _ = draw_report(report(EXACT)).axes
    assert not partings.axison
    assert [text.get_text() for text in partings.texts] == ["none differs"]
