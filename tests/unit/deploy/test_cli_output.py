"""How answers are printed."""

import json
from pathlib import Path

import pytest

from headrace.deploy.commands.output import ReplyText, failure_text, statistics, write_json
from headrace.deploy.commands.tail import _Shown
from headrace.deploy.commands.up import ready_lines
from headrace.deploy.topics import TopicState, differences, other_numbers
from headrace.deploy.up import Stack
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Completion, Event, EventWriter, Timings, Usage
from headrace.schemas.settings import load_settings

DONE = Completion("stop", Usage(5, 3, 4), Timings(decode_ms=100.0, ttft_ms=20.0), 7, {})


def writer(request_id: str = "r1", attempt: int = 1) -> EventWriter:
    """Builds events of an answer."""
    return EventWriter(request_id, "s1", attempt, 0, "m", "fp")


def body(event: Event) -> dict[str, object]:
    """As a reader gets it."""
    found: dict[str, object] = json.loads(event.value)
    return found


def test_text_is_printed_as_it_comes_and_the_line_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Deltas stand one behind the other."""
    text = ReplyText()
    text.show(body(writer().chunk(0, "Hel")), restarted=False)
    text.show(body(writer().chunk(1, "lo")), restarted=False)
    text.end_line()
    text.end_line()
    assert capsys.readouterr().out == "Hello\n"


@pytest.mark.parametrize("last", ["a line\n", ""])
def test_no_empty_line_is_added(last: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the text ends its line itself, or there is none."""
    text = ReplyText()
    text.show(body(writer().chunk(0, last)), restarted=False)
    text.end_line()
    assert capsys.readouterr().out == last


@pytest.mark.parametrize(
    ("is_terminal", "expected"), [(True, "a]0;b\tc\nd"), (False, "a\x1b]0;b\x07\tc\r\nd")]
)
def test_a_model_does_not_steer_the_terminal(
    is_terminal: bool,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Escape sequences are not passed on to one; a pipe gets the bytes of the answer."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    event = body(writer().chunk(0, "a\x1b]0;b\x07\tc\r\nd"))
    ReplyText().show(event, restarted=False)
    assert capsys.readouterr().out == expected


def test_a_restart_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """And the text begins on a line of its own."""
    text = ReplyText()
    text.show(body(writer().chunk(0, "Hel")), restarted=False)
    text.show(body(writer(attempt=2).chunk(0, "Hello")), restarted=True)
    out, err = capsys.readouterr()
    assert out == "Hel\nHello"
    assert "again" in err


def test_json_is_one_line_with_its_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No \\u escapes, so that `grep` finds words."""
    write_json(body(writer().chunk(0, "ä\n🙂")))
    (line,) = capsys.readouterr().out.splitlines()
    assert "ä\\n🙂" in line


def test_statistics_of_a_finished_answer() -> None:
    """Speed counts the tokens after the first, over the time they took."""
    event = body(writer().chunk(2, "!", completion=DONE))
    expected = (
        "3 tokens · 20.0 tok/s · first token after 20 ms · 4 of 5 prompt tokens cached · stop"
    )
    assert statistics(event) == expected


def test_failure_text_names_code_message_and_field() -> None:
    """Of a failed event only."""
    error = RequestError(ErrorCode.MODEL_NOT_FOUND, "no model nix", "model")
    failed = body(writer().failed(0, error))
    assert failure_text(failed) == "model_not_found: no model nix (model)"
    assert failure_text(body(writer().chunk(0, "x"))) is None


def test_tail_keeps_interleaved_answers_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A heading where the request changes; repeats are dropped; it may begin in the middle."""
    shown = _Shown(as_json=False)
    for event in (
        writer("a").chunk(0, "A0"),
        writer("b").chunk(5, "B5"),
        writer("a").chunk(0, "A0"),
        writer("a").chunk(1, "A1", completion=DONE),
    ):
        shown.show(body(event))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == ["── s1 a", "A0", "── s1 b", "B5", "── s1 a", "A1"]
    assert lines[6].startswith("   3 tokens")


def test_ready_lines_hide_the_password() -> None:
    """The box is what people paste into chats."""
    settings = load_settings(redis="redis://user:hunter2@store:6379/0", http_host="::1")
    lines = "\n".join(ready_lines(Stack(settings, Path("logs"), [])))
    assert "hunter2" not in lines
    assert "http://[::1]:8080/" in lines
    assert 'headrace send "What is the capital of France?"' in lines


def test_ready_lines_tell_the_grpc_port_where_there_is_one() -> None:
    """It is off by default."""
    for given, shown in ((None, []), (50051, ["gRPC       127.0.0.1:50051"])):
        lines = ready_lines(Stack(load_settings(grpc_port=given), Path("logs"), []))
        assert [line for line in lines if "gRPC" in line] == shown


def test_ready_lines_say_how_to_ask_and_who_works() -> None:
    """The address where it is not the one that `send` would try; the workers' process ids."""
    given = load_settings(kafka="127.0.0.1:25000", topic_prefix="t")
    lines = ready_lines(Stack(given, Path("logs"), [], (123, 456)))
    (ask,) = [line for line in lines if line.startswith("ask ")]
    assert ask.endswith('France?" --kafka 127.0.0.1:25000 --topic-prefix t')
    assert "workers    pid 123, 456" in lines


def test_numbers_of_topics_that_were_asked_for_in_vain() -> None:
    """One sentence each; nothing where nothing was asked for."""
    states = [TopicState("a", 12, num_replicas=1), TopicState("b", 24, num_replicas=3)]
    assert other_numbers(states, 24, 3) == [
        "a has 12 partitions, not 24",
        "a has 1 replica, not 3",
    ]
    assert other_numbers(states, None, None) == []


def test_differences_of_good_topics_are_none() -> None:
    """Equal counts; the dead-letter topic may have its own."""
    states = [TopicState("a", 12), TopicState("b", 12), TopicState("dlq", 1)]
    assert differences(states, ("a", "b")) == []


def test_each_difference_is_one_sentence() -> None:
    """Missing, unequal and compacted, all at once."""
    states = [TopicState("a", 12), TopicState("b", 6), TopicState("c", None)]
    states.append(TopicState("dlq", 1, "compact,delete"))
    found = differences(states, ("a", "b", "c"))
    assert found[0].startswith("topic c is missing")
    assert found[1] == "partition counts must be equal: a has 12, b has 6"
    assert found[2].startswith("topic dlq has cleanup.policy=compact,delete")
    assert len(found) == 3
