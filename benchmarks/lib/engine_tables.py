"""The tables of `bench_engine`, out of its result rows."""

from collections.abc import Sequence
from typing import Any

from benchmarks.lib.report import format_table, number

Row = dict[str, Any]


def speed_table(rows: Sequence[Row], missing: dict[str, str]) -> str:
    """Tokens per second by engine and batch, with the part of the limit; `*`: disturbed."""
    batches = _in_order(row["batch"] for row in rows)
    engines = _in_order(row["engine"] for row in rows)
    place = {(row["engine"], row["batch"]): row for row in rows}
    lines = [
        [
            engine,
            *(_speed(place[engine, batch]) for batch in batches),
            number(place[engine, batches[0]]["startup_s"], digits=1),
        ]
        for engine in engines
    ]
    lines += [[engine, *["-"] * len(batches), reason] for engine, reason in missing.items()]
    return format_table(["tok/s (of limit)", *map(str, batches), "start-up, s"], lines)


def latency_table(rows: Sequence[Row]) -> str:
    """Time to the first token, and between tokens (p50 / p99), by engine and batch."""
    batches = _in_order(row["batch"] for row in rows)
    timed = [row for row in rows if row["first_token_ms"] is not None]
    place = {(row["engine"], row["batch"]): row for row in timed}
    lines = [
        [engine, *(_latency(place[engine, batch]) for batch in batches)]
        for engine in _in_order(row["engine"] for row in timed)
    ]
    return format_table(["ms: first; between", *map(str, batches)], lines)


def long_prompt_table(rows: Sequence[Row]) -> str:
    """Time to the first token of a long prompt, new and seen before."""
    lines = [
        [row["engine"], str(row["prompt_tokens"]), number(row["cold_ms"]), number(row["again_ms"])]
        for row in rows
    ]
    return format_table(["ms to the first token", "prompt", "cold", "again"], lines)


def _in_order(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))


def _speed(row: Row) -> str:
    ratio = f" ({row['of_limit']:.2f})" if "of_limit" in row else ""
    return f"{row['tok_s_best']:,.0f}{ratio}{'*' if row['disturbed'] else ''}"


def _latency(row: Row) -> str:
    first, p50, p99 = (
        number(row[name])
        for name in ("first_token_ms", "between_tokens_ms_p50", "between_tokens_ms_p99")
    )
    return f"{first}; {p50} / {p99}"
