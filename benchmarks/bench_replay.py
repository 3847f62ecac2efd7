"""Whether recorded answers come out again, token by token.

Regime: real Kafka, Valkey and workers; requests of all kinds (greedy, drawn with and without a
seed, conversations) recorded at one batch size, then replayed from a dump at another, and once more
in bfloat16.
Judged by: in float32 every answer must be exact. In bfloat16, whose sums are rounded otherwise,
what differs should be told as numeric drift.
"""

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lib.report import format_table, write_line
from benchmarks.lib.rounds import OnStep, progress
from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.deploy.local_services import changed
from headrace.deploy.replaying.comparison import Outcome
from headrace.deploy.replaying.dump_file import check_dump
from headrace.deploy.replaying.recording import record
from headrace.deploy.replaying.report import Gate, Report
from headrace.deploy.replaying.selection import Selection
from headrace.deploy.replaying.trial import TrialOptions, replay
from headrace.schemas.settings import Settings
from tests.pipeline import Pipeline, running_pipeline

RECORDED_BATCH, REPLAYED_BATCH = 4, 32
TURNS = 4
RECORD_TIMEOUT_S = 3600.0
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {},
    {"seed": 7, "top_p": 0.9, "temperature": 0.8},
    {"top_k": 40, "stream": False},
    {"return_token_ids": True},
    {"temperature": 0, "repetition_penalty": 1.2},
)

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_replay
  python -m benchmarks.bench_replay --requests 40
"""


def main(
    requests: Annotated[int, typer.Option(min=10)] = 500,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
) -> None:
    """Replays of recorded requests, in float32 and bfloat16."""
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("replay"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-replay-")))
        rows = asyncio.run(_measure(folder, model, requests, on_step, stack))
        print(_table(rows), end="\n\n")
        for row in rows:
            write_line(results, row)


async def _measure(
    folder: Path, model: str, requests: int, on_step: OnStep, stack: ExitStack
) -> list[dict[str, Any]]:
    kafka, valkey = EmbeddedKafka(folder / "kafka"), EmbeddedValkey(folder / "valkey")
    for service in (kafka, valkey):
        stack.callback(service.stop)
        service.start()
    settings = Settings(
        kafka=kafka.bootstrap, redis=valkey.url, topic_prefix="live", model=model, dtype="float32"
    )
    dump = folder / "day.jsonl.zst"
    async with running_pipeline(settings, folder) as pipeline:
        on_step(f"recording {requests} answers, {RECORDED_BATCH} at once")
        await pipeline.start_worker(max_batch_size=RECORDED_BATCH)
        await pipeline.finished(await _ask(pipeline, requests), timeout_s=RECORD_TIMEOUT_S)
    await record(settings, Selection(), dump)
    rows = []
    for dtype in ("float32", "bfloat16"):
        on_step(f"replaying, {REPLAYED_BATCH} at once, {dtype}")
        tried = changed(settings, dtype=dtype, max_batch_size=REPLAYED_BATCH)
        began_s = time.monotonic()
        trial = await replay(tried, dump, check_dump(dump), TrialOptions())
        report = Report(trial.rows, Gate())
        rows.append(
            {
                "bench": "replay",
                "model": model,
                "dtype": dtype,
                "requests": len(report.rows),
                **{outcome.name.lower(): report.counts[outcome] for outcome in Outcome},
                "s": round(time.monotonic() - began_s, 1),
            }
        )
    return rows


async def _ask(pipeline: Pipeline, requests: int) -> list[str]:
    """A fifth of them are turns of conversations."""
    num_turns = requests // 5
    num_sessions = max(1, num_turns // TURNS)
    ids = [await pipeline.ask(_body(number)) for number in range(requests - num_turns)]
    keys = [f"session {number % num_sessions}" for number in range(num_turns)]
    turns = [await pipeline.ask(_body(number), key=key) for number, key in enumerate(keys)]
    return ids + turns


def _body(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me about the number {number}."}]
    kind = KINDS[number % len(KINDS)]
    return {"messages": messages, "max_tokens": 16 + number % 17} | kind


def _table(rows: list[dict[str, Any]]) -> str:
    header = ["replayed in", *(str(outcome) for outcome in Outcome), "s"]
    lines = [
        [row["dtype"], *(f"{row[one.name.lower()]:,}" for one in Outcome), f"{row['s']:,.0f}"]
        for row in rows
    ]
    return format_table(header, lines)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
