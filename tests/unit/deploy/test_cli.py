"""The command line without any service: help, exit codes, one line for each error."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.consumers.api_keys import ApiKeys, load_key_table
from headrace.deploy import cli
from headrace.models import loading
from headrace.models.loading import ModelLoadError
from headrace.models.request import EngineError, EngineErrorCode
from headrace.schemas.errors import (
    ErrorCode,
    HeadraceError,
    RequestError,
    SettingsError,
    UnavailableError,
)

SUBCOMMANDS = [
    *[(name,) for name in cli.COMMANDS],
    *[("topics", "create"), ("topics", "check"), ("models", "list"), ("models", "pull")],
    ("sessions", "delete"),
    ("keys", "new"),
]


@pytest.mark.parametrize("words", [(), *SUBCOMMANDS], ids=" ".join)
def test_help_of_each_command_has_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who knows nothing can copy a line."""
    assert cli.run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"headrace {' '.join(words)}".strip() in text


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with what it does."""
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text and about in text for name, (_, about) in cli.COMMANDS.items())


def test_a_new_key_is_one_of_the_entry_that_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The two lines are the key and what goes into the file; each key is another."""
    shown = []
    for _ in range(2):
        assert cli.run(["keys", "new", "--tenant", 'ac"me']) == 0
        shown.append(capsys.readouterr().out.splitlines())
    (key, entry), (other, _) = shown
    path = tmp_path / "keys.json"
    path.write_text("{" + entry + "}")
    keys = ApiKeys(load_key_table(path))
    assert keys.tenant_of(key) == 'ac"me'
    assert key != other
    assert key not in entry
    assert cli.run(["keys", "new", "--tenant", "t", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    path.write_text(json.dumps(found["entry"]))
    assert ApiKeys(load_key_table(path)).tenant_of(found["key"]) == "t"
    assert cli.run(["keys", "new", "--tenant", ""]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The package's own."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headrace 0.")


@pytest.mark.parametrize(
    "words",
    [
        ("nix",),
        ("send",),
        ("cancel", "r1"),
        ("topics", "create", "--partitions", "0"),
        ("topics", "check", "--nix"),
        ("topics", "check", "--kafka", "nowhere"),
        ("worker", "--max-batch-size", "many"),
        ("send", "hi", "--context", "forget"),
        ("send", ""),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr; nothing on stdout."""
    assert cli.run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert len(err.splitlines()) == 1


def test_no_command_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage too, but of somebody who wants to know."""
    assert cli.run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_bad_flag_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Not by the variable that was not used."""
    assert cli.run(["topics", "check", "--kafka", "nowhere"]) == 2
    assert "--kafka: " in capsys.readouterr().err


def test_a_bad_variable_is_called_by_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the value came from the environment."""
    monkeypatch.setenv("HEADRACE_KAFKA", "nowhere")
    assert cli.run(["topics", "check"]) == 2
    assert "HEADRACE_KAFKA: " in capsys.readouterr().err


def test_an_unknown_variable_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typo must not pass for a setting that is in force."""
    monkeypatch.setenv("HEADRACE_MAX_BATCHSIZE", "8")
    assert cli.run(["topics", "check"]) == 2
    assert "HEADRACE_MAX_BATCHSIZE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (SettingsError("bad"), 2),
        (RequestError(ErrorCode.INVALID_VALUE, "bad"), 2),
        (UnavailableError("Kafka", 3), 1),
        (HeadraceError("bad"), 1),
        (ConnectionRefusedError(111, "Connection refused"), 1),
        (ValueError("a defect of ours"), 1),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [SettingsError("bad")])]), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_is_one_line_and_its_exit_code(
    problem: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also through the task groups that it came out of; never a traceback."""
    assert cli.report(problem) == code
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(("what", "name"), [("Kafka at k:9092", "kafka"), ("Redis", "redis")])
def test_a_service_that_does_not_answer_comes_with_what_to_do(
    what: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """How to start one, and how to name another."""
    assert cli.report(UnavailableError(what, 3)) == 1
    assert capsys.readouterr().err == (
        f"headrace: {what} gave no answer within 3 s: is it running? "
        f"(`headrace up` starts one; --{name} / HEADRACE_{name.upper()})\n"
    )


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (ModelLoadError("m", "no\nweights"), "cannot load model m: no weights"),
        (EngineError(EngineErrorCode.OUT_OF_MEMORY, "no room"), "no room"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_engine_refuses_is_not_unexpected(
    problem: Exception, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line in its own words."""
    assert cli.report(problem) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert "unexpected" not in line


def test_a_device_that_is_not_there_is_not_unexpected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A plain ValueError, but of the engine."""
    with pytest.raises(ValueError, match="no device") as caught:
        loading._device("cuda:99")
    assert cli.report(caught.value) == 1
    assert capsys.readouterr().err == "headrace: there is no device cuda:99 here\n"


def test_a_gateway_without_keys_stays_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract §8: without an API keys file it listens on loopback only."""
    assert cli.run(["gateway", "--http-host", "0.0.0.0"]) == 2
    assert "HEADRACE_API_KEYS_FILE" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    """`headrace --help` must not wait for torch, nor for Kafka's client."""
    code = (
        "import sys; from headrace.deploy.cli import run; run(['--help']); "
        "heavy = {'torch', 'transformers', 'faust', 'aiokafka', 'pydantic'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    started_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.perf_counter() - started_s < 5  # 0.2 s on an idle machine


def test_the_reader_of_our_output_may_leave() -> None:
    """`headrace … | head -1`: no traceback."""
    command = f"{sys.executable} -m headrace.deploy.cli --help | head -1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
