"""The flags that say which requests are meant; `dump` and `replay` have the same ones."""

import time
from typing import Annotated

import typer

from headrace.deploy.dead_letter_text import printable
from headrace.deploy.replaying.selection import OffsetRange, Selection, parse_time


def _offsets(text: str) -> OffsetRange:
    try:
        return OffsetRange.parse(text)
    except ValueError as problem:
        raise typer.BadParameter(f"{printable(text)!r} {problem}") from problem


def _time(text: str) -> int:
    try:
        return parse_time(text, time.time_ns() // 1_000_000)
    except ValueError as problem:
        raise typer.BadParameter(f"{printable(text)!r} {problem}") from problem


Offsets = Annotated[
    list[OffsetRange] | None,
    typer.Option(
        "--offsets",
        parser=_offsets,
        metavar="PARTITION:FROM-TO",
        help="These offsets, both ends included; may be given several times.",
    ),
]
From = Annotated[
    int | None,
    typer.Option(
        "--from",
        parser=_time,
        metavar="TIME",
        help="Not older than this: 2026-01-31T12:00:00Z, 1h (ago), or milliseconds since 1970.",
    ),
]
To = Annotated[
    int | None, typer.Option("--to", parser=_time, metavar="TIME", help="Older than this.")
]
Sessions = Annotated[
    list[str] | None,
    typer.Option("--session", metavar="S", help="Of this session; may be given several times."),
]
Last = Annotated[
    int | None,
    typer.Option("--last", min=1, max=1_000_000_000, help="The newest so many requests."),
]


def selection_of(
    offsets: list[OffsetRange] | None,
    since_ms: int | None,
    until_ms: int | None,
    sessions: list[str] | None,
    last: int | None,
) -> Selection:
    """The flags' meaning. Raises: typer.BadParameter for a range that has nothing in it."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise typer.BadParameter("--from must be before --to")
    return Selection(tuple(offsets or ()), since_ms, until_ms, frozenset(sessions or ()), last)
