"""What the command line of `headrace bench` takes and refuses, before anything is sent."""

import json
from pathlib import Path

import pytest

from headrace.deploy import cli
from headrace.deploy.bench.load import Load
from headrace.deploy.replaying.dump_file import DumpWriter
from headrace.producers.load_shapes import BUILT_IN
from headrace.schemas.dump import DumpHeader, DumpRecord


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "0"), "must be above 0"),
        (("--rate", "nan"), "must be above 0"),
        (("--rate", "inf"), "must be above 0"),
        (("--speed", "-1"), "must be above 0"),
        (("--duration", "5x"), "no span of time"),
        (("--duration", "0s"), "must be above 0"),
        (("--requests", "0"), "--requests"),
        (("--fail-if", "ttft_p98>1"), "there are ttft_max"),
        (("--fail-if", "ttft_p99"), "is no limit"),
        (("--shapes", "/nowhere/shapes.json"), "No such file"),
        (("--shape", "chat", "--shapes", "x"), "only one of them"),
        (("--arrivals", "bursty"), "--arrivals"),
        (("--api-key-file", "key"), "with --http only"),
        (("--http", "http://x", "--tenant", "t"), "--api-key-file"),
        (("--kafka", "nowhere"), "--kafka"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    assert cli.run(["bench", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plot", "/nowhere/run.png"), "/nowhere/run.png"),
        (("--plot", "run.doc"), "run.doc"),
        (("--out", "/nowhere/rows"), "/nowhere/rows"),
        (("--from", "/nowhere/dump"), "/nowhere/dump"),
        (("--http", "http://127.0.0.1:1"), "http://127.0.0.1:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_work_is_said_before_the_load_begins(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 1."""
    assert cli.run(["bench", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err


def test_the_schema_of_a_shapes_file_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout, for a file."""
    assert cli.run(["bench", "--shapes-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "think_s" in schema["$defs"]["Shape"]["properties"]


def load(recording: Path | None = None) -> Load:
    return Load(
        rate_per_s=10.0,
        spacing="poisson",
        shapes=[BUILT_IN["chat"]],
        recording=recording,
        speed=4.0,
        duration_s=5.0,
        max_requests=None,
        warm_up_s=2.0,
        seed=3,
    )


def test_the_load_runs_for_the_warm_up_and_the_duration() -> None:
    """Its end is both."""
    schedule = load().schedule("r")
    due_s = []
    while (turn := schedule.take(100.0)) is not None:
        due_s.append(turn.due_s)
    assert 50 < len(due_s) < 95
    assert 6 < max(due_s) < 7


def test_a_recording_is_read_from_a_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What holds no request is said."""
    path = tmp_path / "dump.jsonl"
    with DumpWriter(path, DumpHeader("p", 1, "2026-01-01T00:00:00Z")) as dump:
        for time_ms, value in ((0, b'{"prompt":"x"}'), (2000, b"{"), (8000, b'{"prompt":"y"}')):
            dump.write(DumpRecord("request", 0, 0, time_ms, 0, b"k", value, ()))
    schedule = load(path).schedule("r")
    first, second = schedule.take(0.0), schedule.take(2.0)
    assert first is not None
    assert second is not None
    assert (first.due_s, second.due_s, second.measured) == (0.0, 2.0, True)
    assert second.body == {"prompt": "y"}
    assert capsys.readouterr().err.startswith("1 records of")
