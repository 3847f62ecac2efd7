"""How the lag is shown: a table for people, an object for programs. Reads nothing."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.consumers.lag import Lag, PartitionLag

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("partition", "records", "oldest", "tokens", "committed", "end")
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def lag_json(lag: Lag) -> dict[str, Any]:
    """Totals and partitions; `time_ms`: of the epoch."""
    ago_s = time.monotonic() - lag.read_at_s
    return {
        "time_ms": int((time.time() - ago_s) * 1000),
        "records": lag.records,
        "seconds": lag.seconds,
        "tokens": lag.tokens,
        "partitions": [asdict(one) for one in lag.partitions],
    }


def lag_lines(lag: Lag) -> str:
    """The table as plain lines, the columns one below the other."""
    rows = [_columns(lag), *_rows(lag)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def lag_table(lag: Lag, *, max_rows: int | None = None) -> "Table":
    """The table for a terminal; of more partitions than `max_rows`, those furthest behind."""
    from rich.table import Table

    shown = furthest_behind(lag, max_rows)

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _columns(lag):
        table.add_column(name, justify="right")
    *partitions, total = _rows(lag)
    for row, one in zip(partitions, lag.partitions, strict=True):
        if one in shown:
            table.add_row(*row, style="" if one.records else "dim")
    if len(shown) < len(lag.partitions):
        table.caption = f"{len(lag.partitions) - len(shown)} partitions that are less behind"
    table.add_row(*total, style="bold")
    return table


def furthest_behind(lag: Lag, limit: int | None) -> set[PartitionLag]:
    """At most `limit` partitions, the oldest first; all without a limit."""
    ordered = sorted(lag.partitions, key=lambda one: (-one.seconds, -one.records))
    return set(ordered[:limit])


def age_text(seconds: float) -> str:
    """`12s`, `3m`, `2h`, `4d`: rounded down."""
    for size_s, unit in _STEPS:
        if seconds >= size_s:
            return f"{int(seconds // size_s)}{unit}"
    return "0s"


def _has_topics(lag: Lag) -> bool:
    return len({one.topic for one in lag.partitions}) > 1


def _columns(lag: Lag) -> Sequence[str]:
    return ("topic", *_COLUMNS) if _has_topics(lag) else _COLUMNS


def _rows(lag: Lag) -> list[Sequence[str]]:
    """One a partition, then the total."""
    total = (
        "total",
        f"{lag.records:,}",
        age_text(lag.seconds) if lag.records else "-",
        f"{lag.tokens:,}",
        "",
        "",
    )
    if not _has_topics(lag):
        return [*map(_row, lag.partitions), total]
    return [*((one.topic, *_row(one)) for one in lag.partitions), ("", *total)]


def _row(one: PartitionLag) -> Sequence[str]:
    return (
        str(one.partition),
        f"{one.records:,}",
        age_text(one.seconds) if one.records else "-",
        f"{one.tokens:,}",
        "-" if one.committed is None else str(one.committed),
        str(one.end),
    )
