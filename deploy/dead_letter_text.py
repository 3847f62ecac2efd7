"""How dead letters are printed: a row of a table, a page about one, or JSON.

Strangers wrote what is in them, so nothing is printed that could move a terminal's cursor; JSON
holds the bytes as base64 beside the text.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.schemas.dead_letter import DeadLetter, DlqPlace
from headrace.schemas.errors import RequestError
from headrace.schemas.strict_json import decode_object

HEX_MAX_BYTES = 4096
"""A page of a hundred lines or two; `--json` has the rest."""

_HEX_WIDTH = 16
_MAX_CELL_CHARS = {"session": 24, "request id": 44, "reason": 24}
_ERROR_CHARS = 60


@dataclass(frozen=True, slots=True)
class LetterSummary:
    """What a list keeps of a letter: a few hundred bytes, whatever its size."""

    place: DlqPlace
    timestamp_ms: int
    reason: str | None
    attempts: int | None
    key: bytes | None
    request_id: str | None
    error: str | None
    topic: str | None

    @classmethod
    def of(cls, letter: DeadLetter) -> "LetterSummary":
        """The summary of `letter`."""
        original = letter.original
        return cls(
            place=letter.place,
            timestamp_ms=letter.record.timestamp_ms,
            reason=letter.reason,
            attempts=letter.attempts,
            key=letter.record.key,
            request_id=letter.request_id,
            error=letter.error,
            topic=original.topic if original else None,
        )

    def as_json(self) -> dict[str, Any]:
        """One line of `list --json`."""
        return {
            "place": str(self.place),
            "time": _iso(self.timestamp_ms),
            "reason": self.reason,
            "attempts": self.attempts,
            "session": _text_of(self.key),
            "request_id": self.request_id,
            "error": self.error,
            "topic": self.topic,
        }


def table(summaries: Iterable[LetterSummary]) -> str:
    """Columns as wide as what stands in them; one line a letter."""
    head = ["place", "when", "reason", "tries", "session", "request id", "error"]
    rows = [head, *(_row(summary) for summary in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


def page(letter: DeadLetter) -> str:
    """All about one letter; the value as indented JSON where it is a JSON object."""
    original, record = letter.original, letter.record
    came_from = f"{original.topic} {original.partition}-{original.offset}" if original else None
    facts = {
        "place": str(letter.place),
        "when": _local(record.timestamp_ms),
        "reason": letter.reason,
        "error": letter.error,
        "attempts": None if letter.attempts is None else str(letter.attempts),
        "request": letter.request_id,
        "from": came_from,
        "asked": _local(original.timestamp_ms) if original else None,
        "key": _shown(record.key),
    }
    lines = [f"{name:9} {'-' if text is None else printable(text)}" for name, text in facts.items()]
    lines += ["headers"]
    lines += [f"  {printable(name)}: {_shown(value)}" for name, value in record.headers]
    if record.value is None:
        return "\n".join([*lines, "value     null"]) + "\n"
    lines += [f"value     {len(record.value)} bytes", value_text(record.value)]
    return "\n".join(lines).rstrip("\n") + "\n"


def page_json(letter: DeadLetter) -> dict[str, Any]:
    """`show --json`: bytes as base64, and as text where they are UTF-8; null stays null."""
    original = letter.original
    return LetterSummary.of(letter).as_json() | {
        "partition": original.partition if original else None,
        "offset": original.offset if original else None,
        "timestamp_ms": original.timestamp_ms if original else None,
        "key": _both(letter.record.key),
        "headers": [[name, _both(value)] for name, value in letter.record.headers],
        "value": _both(letter.record.value),
    }


def value_text(value: bytes) -> str:
    """Indented JSON, else text, else a hex dump; never a character that a terminal obeys."""
    try:
        return printable(json.dumps(decode_object(value), ensure_ascii=False, indent=2), keep="\n")
    except RequestError:  # no JSON, or none that reads the same everywhere
        text = _text_of(value)
    return _hex_dump(value) if text is None or "\x00" in text else printable(text, keep="\n\t")


def printable(text: str, *, keep: str = "") -> str:
    """`text` with escapes for what is no visible character, a terminal's commands among it."""
    return "".join(c if c in keep or c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _row(summary: LetterSummary) -> list[str]:
    return [
        str(summary.place),
        _local(summary.timestamp_ms),
        _cell("reason", summary.reason),
        "-" if summary.attempts is None else str(summary.attempts),
        _cell("session", None if summary.key is None else _shown(summary.key)),
        _cell("request id", summary.request_id),
        _cut(printable(" ".join((summary.error or "-").split())), _ERROR_CHARS),
    ]


def _cell(column: str, text: str | None) -> str:
    return _cut("-" if text is None else printable(text), _MAX_CELL_CHARS[column])


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _hex_dump(value: bytes) -> str:
    lines = []
    for start in range(0, min(len(value), HEX_MAX_BYTES), _HEX_WIDTH):
        row = value[start : start + _HEX_WIDTH]
        seen = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):{3 * _HEX_WIDTH}} {seen}")
    if len(value) > HEX_MAX_BYTES:
        lines.append(f"… and {len(value) - HEX_MAX_BYTES} bytes more (--json has all of them)")
    return "\n".join(lines)


def _shown(value: bytes | None) -> str:
    """A key or a header's value in one line; bytes that are no UTF-8 as escapes."""
    if value is None:
        return "null"
    text = _text_of(value)
    if text is None:
        return "".join(f"\\x{byte:02x}" for byte in value)
    return printable(text) or '""'


def _both(value: bytes | None) -> dict[str, str | None] | None:
    if value is None:
        return None
    return {"text": _text_of(value), "base64": base64.b64encode(value).decode("ascii")}


def _text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _iso(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _local(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone().strftime("%F %T")
