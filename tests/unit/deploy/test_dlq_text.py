"""How dead letters are printed."""

import base64
import json
from typing import Any

import pytest

from headrace.deploy import cli
from headrace.deploy.counted import MANY, Counted
from headrace.deploy.dead_letter_text import (
    HEX_MAX_BYTES,
    LetterSummary,
    page,
    page_json,
    table,
    value_text,
)
from headrace.schemas.dead_letter import DeadLetter
from headrace.schemas.headers import Headers
from headrace.schemas.request import Record

GOOD = b'{"request_id":"r1","prompt":"\xc3\xa4"}'


def letter(
    value: bytes | None = GOOD,
    *,
    key: bytes | None = b"s1",
    own: Headers = (),
    **about: str,
) -> DeadLetter:
    """A dead letter at 2-9."""
    said = {
        "reason": "invalid_json",
        "error": "it broke",
        "topic": "headrace.requests",
        "partition": "3",
        "offset": "14",
        "timestamp": "1700000000000",
        "attempts": "1",
    } | about
    headers = [*own, *((f"headrace-dlq-{name}", text.encode()) for name, text in said.items())]
    return DeadLetter(Record("headrace.dlq", 2, 9, 1_800_000_000_123, key, value, headers))


def rows(*letters: DeadLetter) -> list[str]:
    return table([LetterSummary.of(one) for one in letters]).splitlines()


def test_a_row_says_where_when_why_and_who() -> None:
    """Columns under their heads; the error in a few words."""
    head, row = rows(letter(error="much is wrong here, " * 9))
    for name, text in (
        ("place", "2-9"),
        ("reason", "invalid_json"),
        ("tries", "1"),
        ("session", "s1"),
        ("request id", "r1"),
        ("error", "much is wrong here"),
    ):
        assert row[head.index(name) :].startswith(text)
    assert row.endswith("…")
    assert len(row) < 200


def test_what_is_not_known_is_a_dash_and_null_is_null() -> None:
    """A record that somebody else wrote into the topic, without key or headers."""
    bare = DeadLetter(Record("headrace.dlq", 0, 0, 0, None, b"x", ()))
    (_, row) = rows(bare)
    assert row.split()[3:] == ["-", "-", "-", "-", "-"]
    assert '""' in rows(letter(key=b""))[1]


NASTY = "\x1b[2J\x9b1A\r\x07\u202e\ud7ff"


@pytest.mark.parametrize("text", [NASTY, "a\nb\tc"])
def test_strangers_do_not_steer_the_terminal(text: str) -> None:
    """Escapes wherever a stranger's text stands: key, id, error, headers' names and values."""
    raw = text.encode()
    body = json.dumps({"request_id": text, "prompt": text}).encode()
    one = letter(body, key=raw, own=[(text, raw), ("null", None)], error=text, reason=text)
    printed = page(one) + table([LetterSummary.of(one)])
    assert [c for c in printed if not c.isprintable() and c != "\n"] == []
    assert "\\u001b" in printed or text == "a\nb\tc"
    assert len(rows(one)) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            b'{"a":[1,"\\u001b"],"b":null}',
            '{\n  "a": [\n    1,\n    "\\u001b"\n  ],\n  "b": null\n}',
        ),
        ("plain ä\tx\n".encode(), "plain ä\tx\n"),
        (b'{"a":1,"a":2}', '{"a":1,"a":2}'),
        (b'{"a":NaN}', '{"a":NaN}'),
        (b'{"a":"\\ud800"}', '{"a":"\\ud800"}'),
        (b"[" * 5000, "[" * 5000),
        (b'{"a":' + b"9" * 5000 + b"}", '{"a":' + "9" * 5000 + "}"),
        (b"", ""),
        (b"a\x1b[2Jb", "a\\u001b[2Jb"),
    ],
)
def test_values_are_indented_json_else_text(value: bytes, expected: str) -> None:
    """What JSON readers do not agree on is shown as it came."""
    assert value_text(value) == expected


def test_other_bytes_are_a_hex_dump_of_bounded_length() -> None:
    """With the letters that are in it, and how much is left out."""
    lines = value_text(b"\xff\xfe\x00abc" + bytes(range(20))).splitlines()
    assert lines[0].startswith("00000000  ff fe 00 61 62 63 00")
    assert lines[0].endswith("...abc..........")
    assert len(lines) == 2
    long = value_text(b"\xff" * (HEX_MAX_BYTES + 5)).splitlines()
    assert len(long) == HEX_MAX_BYTES // 16 + 1
    assert "5 bytes more" in long[-1]


def test_a_page_says_where_it_came_from() -> None:
    """And that a null value is null."""
    text = page(letter(None, own=[("traceparent", b"00-1"), ("empty", b""), ("gone", None)]))
    assert "from      headrace.requests 3-14\n" in text
    assert "  traceparent: 00-1\n" in text
    assert '  empty: ""\n' in text
    assert "  gone: null\n" in text
    assert text.endswith("value     null\n")


@pytest.mark.parametrize("value", [None, b"", b"null", b"\xff", GOOD])
def test_json_keeps_the_bytes(value: bytes | None) -> None:
    """Null stays null; text beside base64 where it is UTF-8."""
    found: dict[str, Any] = json.loads(json.dumps(page_json(letter(value, key=None))))
    assert found["key"] is None
    if value is None:
        assert found["value"] is None
    else:
        assert base64.b64decode(found["value"]["base64"]) == value
        assert found["value"]["text"] == (None if value == b"\xff" else value.decode())
    assert (found["time"], found["partition"], found["offset"]) == (
        "2027-01-15T08:00:00.123Z",
        3,
        14,
    )


@pytest.mark.parametrize("command", ["list", "show", "retry"])
def test_help_of_each_subcommand_has_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who knows nothing can copy a line."""
    assert cli.run(["dlq", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"headrace dlq {command} " in text.partition("Examples:")[2]


@pytest.mark.parametrize(
    "words",
    [
        ("show", "3"),
        ("show", "3-\x1b[2J"),
        ("show",),
        ("list", "--since", "1"),
        ("list", "--since", "-1h"),
        ("list", "--limit", "0"),
        ("retry",),
        ("retry", "3-1", "--all"),
        ("retry", "3-1", "--reason", "x"),
        ("retry", "3-1", "x"),
    ],
    ids=ascii,
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr; nothing on stdout, and nothing is connected to."""
    assert cli.run(["dlq", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert len(err.splitlines()) == 1
    assert "\x1b" not in err


@pytest.mark.parametrize(("is_terminal", "total"), [(False, MANY), (True, MANY), (True, 1)])
def test_a_bar_is_drawn_of_many_on_a_terminal_only(
    is_terminal: bool,
    total: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe gets nothing of it."""
    from headrace.deploy import console

    console.stderr_console.cache_clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with Counted("asking again", total) as progress:
        for _ in range(total):
            progress.advance()
    out, err = capsys.readouterr()
    console.stderr_console.cache_clear()
    assert out == ""
    assert ("asking again" in err) == (is_terminal and total >= MANY)
