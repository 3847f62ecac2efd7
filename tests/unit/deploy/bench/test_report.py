"""What a run comes to."""

import json
from pathlib import Path

import pytest

from headrace.deploy.bench.exchange import Exchange, Outcome
from headrace.deploy.bench.picture import draw
from headrace.deploy.bench.recorder import Recorder
from headrace.deploy.bench.report import (
    FIGURES,
    Measured,
    figures_of,
    reasons_to_fail,
    report_of,
    table,
)
from headrace.deploy.bench.rows import RowFile
from headrace.deploy.bench.thresholds import Threshold, ThresholdError, parse_threshold
from tests.loads import chunk, finished, last, recorded, turn

SESSIONS = {"begun": 3, "complete": 2, "given_up": 1, "cut": 0}


def not_sent(due_s: float) -> Exchange:
    exchange = Exchange(turn(due_s), "r")
    exchange.end(Outcome.NOT_SENT, due_s, "not_sent")
    return exchange


def unfinished(due_s: float, end_s: float) -> Exchange:
    exchange = Exchange(turn(due_s), "r", sent_s=due_s)
    exchange.end(Outcome.UNFINISHED, end_s)
    return exchange


def wrong(due_s: float, *, measured: bool = True) -> Exchange:
    exchange = Exchange(turn(due_s, measured=measured), "r-wrong", sent_s=due_s)
    exchange.take(chunk(1, "b"), due_s + 1)
    return exchange


def measured(recorder: Recorder, end_s: float = 10.0) -> Measured:
    return Measured(recorder, 0.0, end_s, SESSIONS)


def test_every_figure_has_a_value_or_none() -> None:
    """What `--fail-if` may name is what a report has."""
    assert figures_of(measured(Recorder())).keys() == FIGURES
    assert figures_of(measured(recorded(finished(0, 1, 2)))).keys() == FIGURES


def test_latencies_and_rates() -> None:
    """From due times, over the window."""
    found = figures_of(measured(recorded(finished(0, 1, 2), finished(1, 3, 5), finished(2, 2, 4))))
    assert (found["ttft_p50"], found["ttft_max"]) == (2.0, 3.0)
    assert (found["e2e_p50"], found["e2e_max"]) == (4.0, 5.0)
    assert (found["inter_token_p50"], found["session_max"]) == (2.0, 5.0)
    assert (found["requests_s"], found["finished_s"], found["output_tok_s"]) == (0.3, 0.3, 0.6)


def test_what_was_not_sent_counts_as_failed() -> None:
    """Never left out in silence."""
    run = measured(recorded(finished(0, 1, 2), not_sent(1)))
    found = figures_of(run)
    assert (found["requests"], found["not_sent"], found["errors"]) == (2, 1, 1)
    assert found["error_rate"] == 0.5
    assert "1 not sent" in table(report_of(run, {}, ()))


def test_what_did_not_finish_counts_with_its_age() -> None:
    """To leave it out would make an overloaded server look fast; and the run fails."""
    run = measured(recorded(finished(0, 1, 2), unfinished(1, 61)))
    found = figures_of(run)
    assert (found["ttft_max"], found["e2e_max"]) == (60.0, 60.0)
    (reason,) = reasons_to_fail(run, (), interrupted=False)
    assert reason.startswith("1 unfinished")


def test_the_warm_up_counts_only_where_it_was_wrong() -> None:
    """A wrong answer is a bug whenever it comes."""
    run = measured(
        recorded(finished(0, 9, 9, measured=False), wrong(1, measured=False), finished(2, 1, 2))
    )
    found = figures_of(run)
    assert (found["requests"], found["ttft_max"], found["wrong"]) == (1, 1.0, 0)
    assert reasons_to_fail(run, (), interrupted=False) == ["wrong answer: r-wrong: events_lost"]


def test_an_answer_that_turns_out_wrong_is_no_longer_finished() -> None:
    """A late repeat contradicted it."""
    exchange = finished(0, 1, 2)
    recorder = recorded(exchange)
    exchange.take(chunk(0, "x"), 5.0)
    recorder.turned_wrong(exchange, Outcome.FINISHED)
    found = figures_of(measured(recorder))
    assert (found["finished"], found["wrong"], found["errors"]) == (0, 1, 1)


def test_a_run_without_answers_fails() -> None:
    """A gate must not pass because nothing happened; an interrupted run says that it was."""
    assert reasons_to_fail(measured(Recorder()), (), interrupted=False) == [
        "no measured request was answered"
    ]
    assert reasons_to_fail(measured(Recorder()), (), interrupted=True) == ["interrupted"]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("ttft_p99>2.9", True),
        ("ttft_p99 > 3", False),
        ("ttft_p99>=3", True),
        ("output_tok_s<0.5", True),
        ("output_tok_s<=0.3", False),
        ("e2e_p99.9>4.99", True),
        ("errors>0", False),
    ],
)
def test_limits(text: str, fails: bool) -> None:
    """Above, below, at."""
    run = measured(recorded(finished(0, 1, 2), finished(1, 3, 5)))
    limit = parse_threshold(text, FIGURES)
    assert bool(reasons_to_fail(run, [limit], interrupted=False)) is fails
    (told,) = report_of(run, {}, [limit])["thresholds"]
    assert told["failed"] is fails


def test_a_limit_on_what_was_not_measured_fails() -> None:
    """Nobody knows that it was kept."""
    run = measured(recorded(not_sent(0)))
    limit = Threshold("ttft_p99", ">", 100)
    assert "ttft_p99>100: nothing was measured" in reasons_to_fail(run, [limit], interrupted=False)


@pytest.mark.parametrize(
    "text", ["ttft_p99", "ttft_p99=2", "ttft_p99>x", "ttft_p99>-1", ">2", "ttft_p99>2>1", ""]
)
def test_a_limit_that_cannot_be_read_is_refused(text: str) -> None:
    """A typing error must not switch a gate off."""
    with pytest.raises(ThresholdError, match="no limit"):
        parse_threshold(text, FIGURES)


def test_an_unknown_figure_is_refused_with_those_there_are() -> None:
    """Of the same kind."""
    with pytest.raises(ThresholdError, match=r"'ttft_p98'; there are ttft_max, .*ttft_p99"):
        parse_threshold("ttft_p98>2", FIGURES)


def test_the_report_is_json_and_the_table_has_its_figures() -> None:
    """With rows by turn where there is more than one."""
    run = measured(
        recorded(finished(0, 1, 2), finished(1, 3, 5, number=2), finished(1, 1, 9, number=7))
    )
    report = report_of(run, {"seed": 1}, ())
    assert json.loads(json.dumps(report)) == report
    assert {name: row["e2e"]["count"] for name, row in report["by_turn"].items()} == {
        "1": 1,
        "2": 1,
        "3+": 1,
    }
    lines = table(report).splitlines()
    assert lines[0] == "3 requests in 10.0 s after the warm-up (0 in it): 3 finished"
    (row,) = [line for line in lines if line.startswith("whole answer")]
    assert row.split() == ["whole", "answer", "5.333", "5.000", "9.000", "9.000", "9.000", "9.000"]


def test_late_sending_is_told() -> None:
    """It is the generator's fault then, not the server's."""
    on_time, late = finished(0, 1, 2), Exchange(turn(1), "r", sent_s=1.5)
    late.take(last(0, "a", 1), 2.0)
    assert report_of(measured(recorded(on_time)), {}, ())["kept_up"] is True
    report = report_of(measured(recorded(on_time, late)), {}, ())
    assert (report["kept_up"], report["latency_s"]["generator_lag"]["max"]) == (False, 0.5)


@pytest.mark.parametrize("empty", [True, False])
def test_a_picture_is_drawn(tmp_path: Path, empty: bool) -> None:
    """Of a run without answers, too."""
    many = [finished(i / 10, 0.5, 1 + i % 7) for i in range(0 if empty else 200)]
    path = tmp_path / "run.png"
    draw(measured(recorded(*many), 20), path, title="a run")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_rows_are_json_lines(tmp_path: Path) -> None:
    """One for each request, also for those that were not sent."""
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as rows:
        rows.write(finished(1, 2, 3))
        rows.write(not_sent(4))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["ttft_s"], first["e2e_s"], first["outcome"]) == (2.0, 3.0, "finished")
    assert (second["ttft_s"], second["code"], second["due_s"]) == (None, "not_sent", 4.0)
