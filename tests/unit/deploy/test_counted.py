"""Progress: lines in a pipe however slow one thing is, a counter on a terminal."""

import threading
import time

import pytest

from headrace.deploy import console
from headrace.deploy.counted import Counted


@pytest.mark.parametrize(("total", "text"), [(7, "replaying: 2 of 7"), (None, "replaying: 2")])
def test_a_pipe_gets_lines_while_nothing_happens(
    total: int | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the loop blocks; none of them after the end."""
    err = ""
    with Counted("replaying", total, pipe_s=0.01) as progress:
        progress.advance()
        progress.advance()
        deadline_s = time.monotonic() + 10
        while len(err.splitlines()) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
            err += capsys.readouterr().err
    assert f"0 s: {text}" in err.splitlines()
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_what_is_quick_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """As most commands are."""
    with Counted("replaying", 100) as progress:
        for _ in range(100):
            progress.advance()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("total", [3, None])
def test_few_slow_things_are_counted_on_a_terminal(
    total: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shadow may wait minutes for its first request."""
    console.stderr_console.cache_clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Counted("shadowing", total, are_slow=True) as progress:
        progress.advance()
    err = capsys.readouterr().err
    console.stderr_console.cache_clear()
    assert "shadowing" in err
