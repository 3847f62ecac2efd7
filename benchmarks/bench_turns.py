"""What it saves a conversation that its KV state travels.

Regime: the second turn of a conversation, 32 new tokens on top of a history, one request at a time;
time to the first token on the worker that had the first turn, on a cold worker with the blocks
from Redis (a real Valkey on this machine, prefetch included), and on a cold worker that computes
all again. The ways take turns, every repetition is a new conversation; medians. Turns during which
other processes computed do not count, unless all were (`*`).
Judged by: recompute / redis, 5 or more at 1,000 tokens, and nowhere below 0.95.
"""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.lib.process import CLOCK_GRAIN_S
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import OnStep, progress
from benchmarks.lib.turns import NEW_TURN_TOKENS, SecondTurn, Way, Worker, second_turn
from benchmarks.lib.workload import PromptMaker
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.models.loading import LoadedModel, load_model
from headrace.models.store import resolve_model
from headrace.schemas.keys import Keys

VALKEY_MB = 4096

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_turns
  python -m benchmarks.bench_turns --history 1000 --dtype float32 --repetitions 9
  python -m benchmarks.bench_turns --redis redis://store:6379/0
"""

Row = dict[str, Any]


def main(
    model: Annotated[str, typer.Option(help="alias, folder or hub id")] = "smollm2-135m",
    dtype: Annotated[str, typer.Option(help="comma-separated")] = "bfloat16,float32",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    history: Annotated[str, typer.Option(help="tokens, comma-separated")] = "250,1000,4000",
    repetitions: Annotated[int, typer.Option(min=1)] = 5,
    redis: Annotated[str | None, typer.Option(help="one that runs, instead of our own")] = None,
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
) -> None:
    """Time to the first token of a second turn: local, from Redis, computed again."""
    torch.set_num_threads(threads)
    lengths = [int(word) for word in history.split(",")]
    rows: list[Row] = []
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("turns"))
        if redis is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            valkey = EmbeddedValkey(folder, maxmemory_mb=VALKEY_MB)
            valkey.start()
            stack.callback(valkey.stop)
            redis = valkey.url
        for name in dtype.split(","):
            on_step(f"{name}: load")
            loaded = [
                load_model(resolve_model(model), dtype=name, device="cpu")  # type: ignore[arg-type]
                for _ in range(2)
            ]
            common = {"bench": "turns", "model": model, "dtype": name, "threads": threads}
            found = asyncio.run(_measure(loaded, redis, lengths, repetitions, on_step))
            rows += [common | row for row in found]
        print(_table(rows), end="\n\n")
        for row in rows:
            write_line(results, row)


async def _measure(
    loaded: Sequence[LoadedModel],
    redis_url: str,
    lengths: Sequence[int],
    repetitions: int,
    on_step: OnStep,
) -> list[Row]:
    """A row per history, the lengths taking turns too."""
    model = loaded[0]
    maker = PromptMaker(model.tokenizer)
    keys = Keys("headrace-bench")
    warm, cold = (Worker(one, redis_url, keys) for one in loaded)
    fitting = [min(length, model.max_model_len - NEW_TURN_TOKENS - 2) for length in lengths]
    done: list[list[dict[Way, SecondTurn]]] = [[] for _ in fitting]
    try:
        for index in range(repetitions + 1):  # the first one warms up
            for length, turns in zip(fitting, done, strict=True):
                on_step(f"{length} tokens: repetition {index}")
                key = f"{model.fingerprint} {length} {index}"
                turns.append(await second_turn(warm, cold, maker, length, key=key))
    finally:
        warm.close()
        cold.close()
    return [
        _row(length, asked, turns[1:])
        for length, asked, turns in zip(fitting, lengths, done, strict=True)
    ]


def _row(length: int, asked: int, turns: Sequence[dict[Way, SecondTurn]]) -> Row:
    row: Row = {"history_tokens": length, "history_asked": asked, "new_tokens": NEW_TURN_TOKENS}
    for way in Way:
        runs = [turn[way] for turn in turns]
        kept = [run for run in runs if run.others_s <= CLOCK_GRAIN_S + 0.06 * run.first_token_s]
        row[f"{way}_ms"] = statistics.median(run.first_token_s for run in kept or runs) * 1e3
        row[f"{way}_undisturbed"] = len(kept)
        row[f"{way}_cached_tokens"] = statistics.median(run.cached_tokens for run in runs)
    row["repetitions"] = len(turns)
    row["fetched_tokens"] = [turn[Way.REDIS].fetched_tokens for turn in turns]
    row["recompute_by_redis"] = row["recompute_ms"] / row["redis_ms"]
    return row


def _table(rows: Sequence[Row]) -> str:
    lines = [
        [
            row["dtype"],
            _length(row),
            *(_ms(row, way) for way in (Way.LOCAL, Way.REDIS, Way.RECOMPUTE)),
            number(row["recompute_by_redis"], digits=1),
            _gate(row["fetched_tokens"]),
        ]
        for row in rows
    ]
    header = ["first token, ms", "history", *Way, "recompute / redis", "cost gate"]
    return format_table(header, lines)


def _length(row: Row) -> str:
    clipped = " (window)" if row["history_tokens"] < row["history_asked"] else ""
    return number(row["history_tokens"]) + clipped


def _ms(row: Row, way: Way) -> str:
    return number(row[f"{way}_ms"], digits=1) + ("" if row[f"{way}_undisturbed"] else "*")


def _gate(fetched: Sequence[int]) -> str:
    """What came from Redis, over all repetitions."""
    if not any(fetched):
        return "compute"
    several = min(fetched) != max(fetched)
    return f"fetch {min(fetched):,}{f'-{max(fetched):,}' if several else ''}"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
