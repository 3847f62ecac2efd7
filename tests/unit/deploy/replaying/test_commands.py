"""Wrong usage of dump, restore, replay and shadow: one line that says what is right."""

from pathlib import Path

import pytest

from headrace.deploy import cli


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("dump",), "FILE"),
        (("dump", "f", "--offsets", "3"), "PARTITION:FROM-TO"),
        (("dump", "f", "--offsets", "3:9-1"), "ends before it begins"),
        (("dump", "f", "--from", "tomorrow"), "is no time"),
        (("dump", "f", "--from", "2026-01-01T00:00:00"), "time zone"),
        (("dump", "f", "--from", "1h", "--to", "2h"), "--from must be before --to"),
        (("dump", "f", "--last", "0"), "--last"),
        (("dump", "f", "--last", "9" * 24), "--last"),
        (("replay", "f", "--last", "5"), "replayed as a whole"),
        (("replay", "--pace", "quick"), "is no pace"),
        (("replay", "--id", "a/b"), "letters and digits"),
        (("replay", "--workers", "-1"), "--workers"),
        (("replay", "--allow-drift", "2"), "--allow-drift"),
        (("shadow",), "--for 10m or --requests 500"),
        (("shadow", "--for", "soon"), "is no span"),
        (("restore",), "FILE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, before anything is connected to."""
    assert cli.run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert text in line


@pytest.mark.parametrize("command", ["replay", "restore"])
def test_a_file_that_is_not_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named; exit code 1."""
    path = tmp_path / "none.jsonl"
    assert cli.run([command, str(path)]) == 1
    assert capsys.readouterr().err == f"headrace: {path}: no such file\n"


@pytest.mark.parametrize(
    "words", [("replay", "--last", "5"), ("shadow", "--requests", "5")], ids=" ".join
)
def test_a_model_that_is_not_there(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Found out without a Kafka."""
    nobody = ("--kafka", "127.0.0.1:1", "--model", "./candidate")
    assert cli.run([*words, *nobody]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: unknown model './candidate'")


@pytest.mark.parametrize("command", ["replay", "restore"])
def test_a_file_that_is_no_dump(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found out without a Kafka."""
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    assert cli.run([command, str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"headrace: {path}, line 1: this is no dump: not JSON: ")
