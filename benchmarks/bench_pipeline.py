"""What the pipeline costs on top of its engine: throughput, time to first token, smoothness.

Regime: one worker, Kafka, Valkey and the load client on one machine, against the engine alone in a
process of its own with the same settings and the same requests, in turns within one run. Each of N
sessions sends its next request when it has read the last event of the one before. Prompts have 45
tokens and share nothing; 64 new tokens, greedy, the end of text ignored. Times are the client's,
from before it hands a request to its producer to when it has an event.
Judged by: >= 0.95 of the engine's throughput, <= 15 ms more to the first token.

`--fake-step-ms` puts an engine that computes nothing in both places, so that the pipeline's own
cost is seen: a step of up to 64 tokens sleeps that long or, with `--busy`, multiplies matrices for
as long as that takes on the machine as it is.
"""

import os
import random
import string
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from transformers import AutoTokenizer

from benchmarks.lib.cpu_time import OthersClock
from benchmarks.lib.fake_runner import FakeWork
from benchmarks.lib.figures import percentile
from benchmarks.lib.pipeline_parts import Child, Parts
from benchmarks.lib.report import format_table, number, write_line
from headrace.models.store import resolve_model

PROMPT_TOKENS, NEW_TOKENS = 45, 64
PROCESSES = ("worker", "worker_loop", "kafka", "valkey", "client")

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_pipeline
  python -m benchmarks.bench_pipeline --sessions 64 --dtype bfloat16 --max-batch-tokens 1024
  python -m benchmarks.bench_pipeline --fake-step-ms 10 --busy --threads 2
"""


class PromptTexts:
    """Seeded texts of PROMPT_TOKENS tokens."""

    def __init__(self, model: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(str(resolve_model(model)))
        self._random = random.Random(4)
        letters = set(string.ascii_lowercase)
        vocabulary = self._tokenizer.get_vocab()
        self._words = sorted(
            token[1:]
            for token in vocabulary
            if len(token) > 3 and token[0] in "Ġ▁" and set(token[1:]) <= letters
        )

    def take(self, count: int) -> list[str]:
        return [self._one() for _ in range(count)]

    def _one(self) -> str:
        while True:
            words = self._random.choices(self._words, k=PROMPT_TOKENS)
            text = "".join(f" {word}" for word in words)
            if len(self._tokenizer(text)["input_ids"]) == PROMPT_TOKENS:
                return text


def measure(
    parts: Parts, prompts: PromptTexts, *, sessions: int, turns: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Engine and pipeline in turns; the first round of each warms up and does not count."""
    runs: dict[str, list[dict[str, Any]]] = {"engine": [], "pipeline": []}
    children: dict[str, Child] = {"engine": parts.engine, "pipeline": parts.client}
    for round_number in range(rounds + 1):
        num_turns = turns if round_number else 1
        for name, child in children.items():
            order = {
                "sessions": sessions,
                "turns": num_turns,
                "new_tokens": NEW_TOKENS,
                "prompts": prompts.take(sessions * num_turns),
            }
            others, before_s = OthersClock(os.getpid()), parts.cpu_s()
            answer = child.ask(order)
            after_s = parts.cpu_s()
            answer["others_s"] = others.elapsed_s()
            answer["cpu"] = {key: after_s[key] - before_s[key] for key in after_s}
            answer["cpu"]["client"] = answer["cpu_s"]
            if round_number:
                runs[name].append(answer)
    return {name: merged(found) for name, found in runs.items()}


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several measurements as one row. Units: `us_per_token_*` are CPU microseconds."""
    wall_s, tokens = sum(run["wall_s"] for run in runs), sum(run["num_tokens"] for run in runs)
    speeds = [run["num_tokens"] / run["wall_s"] for run in runs]
    row: dict[str, Any] = {
        "tok_s": median(speeds),
        "tok_s_runs": speeds,
        "tokens_per_chunk": tokens / sum(run["num_chunks"] for run in runs),
        "others_cores": sum(run["others_s"] for run in runs) / wall_s,
    }
    for name, percents in (
        ("first_token_ms", (50, 95)),
        ("token_ms", (50, 99)),
        ("chunk_gap_ms", (50, 99, 100)),
    ):
        values = [value for run in runs for value in run[name]]
        for percent in percents:
            row[f"{name}_p{percent}"] = percentile(values, percent) if values else None
    for name in PROCESSES:
        used_s = sum(run["cpu"][name] for run in runs)
        row[f"cores_{name}"], row[f"us_per_token_{name}"] = used_s / wall_s, 1e6 * used_s / tokens
    return row


HEADER = (
    *("sessions", "tok/s", "of the engine's", "first token p50 ms", "p95", "added"),
    *("ms/token p50", "p99", "chunk gap p50 ms", "p99", "longest", "tokens/chunk", "others' cores"),
)


def cells(sessions: int, found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The two rows of one number of sessions."""
    engine, pipeline = found["engine"], found["pipeline"]
    rows = []
    for name, row in (("engine", engine), ("pipeline", pipeline)):
        rows.append(
            [
                f"{sessions} {name}",
                number(row["tok_s"]),
                number(row["tok_s"] / engine["tok_s"], digits=3),
                number(row["first_token_ms_p50"], digits=1),
                number(row["first_token_ms_p95"], digits=1),
                number(row["first_token_ms_p50"] - engine["first_token_ms_p50"], digits=1),
                number(row["token_ms_p50"], digits=2),
                number(row["token_ms_p99"], digits=2),
                number(row["chunk_gap_ms_p50"], digits=1),
                number(row["chunk_gap_ms_p99"], digits=1),
                number(row["chunk_gap_ms_p100"], digits=1),
                number(row["tokens_per_chunk"], digits=1),
                number(row["others_cores"], digits=2),
            ]
        )
    return rows


def cpu_cells(sessions: int, row: dict[str, Any]) -> list[str]:
    """CPU time per generated token of each process, and cores in use."""
    return [
        str(sessions),
        *(f"{row[f'us_per_token_{name}']:,.0f} ({row[f'cores_{name}']:.2f})" for name in PROCESSES),
    ]


app = typer.Typer(add_completion=False)


@app.command(epilog=_EXAMPLES)
def main(
    sessions: Annotated[str, typer.Option(help="numbers of sessions at once")] = "1,8,32,64",
    turns: Annotated[int, typer.Option(help="requests of a session, one after another")] = 3,
    rounds: Annotated[int, typer.Option(help="measurements of each, in turns")] = 3,
    model: Annotated[str, typer.Option(help="alias, hub id or folder")] = "smollm2-135m",
    dtype: Annotated[str | None, typer.Option(help="as the worker's setting")] = None,
    threads: Annotated[int, typer.Option(help="of the engine; 0 = all cores")] = 0,
    max_batch_size: Annotated[int, typer.Option(help="rows that run at once")] = 64,
    max_batch_tokens: Annotated[int | None, typer.Option(help="as the worker's setting")] = None,
    batch_window_ms: Annotated[float | None, typer.Option(help="as the worker's setting")] = None,
    fake_step_ms: Annotated[float | None, typer.Option(help="no model: a step takes this")] = None,
    busy: Annotated[bool, typer.Option("--busy", help="fake steps compute, not sleep")] = False,
    out: Annotated[Path | None, typer.Option(help="append the JSON lines to this file")] = None,
) -> None:
    """Measure the pipeline against its engine alone; print tables and JSON lines."""
    settings = {
        "model": model,
        "dtype": dtype,
        "threads": threads,
        "max_batch_size": max_batch_size,
        "max_batch_tokens": max_batch_tokens,
        "batch_window_ms": batch_window_ms,
        "kv_to_redis": "off",
    }
    given = {name: value for name, value in settings.items() if value is not None}
    work = _fake_work(fake_step_ms, busy=busy, threads=threads)
    prompts = PromptTexts(model)
    rows, cpu_rows = [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        results = stack.enter_context(out.open("a")) if out else None
        parts = Parts(given, work, folder, stack)
        for count in map(int, sessions.split(",")):
            found = measure(parts, prompts, sessions=count, turns=turns, rounds=rounds)
            rows += cells(count, found)
            cpu_rows.append(cpu_cells(count, found["pipeline"]))
            about = {"benchmark": "pipeline", "sessions": count, "turns": turns, "rounds": rounds}
            fake = asdict(work) if work else None
            write_line(results, about | {"settings": given, "fake": fake} | found)
    print(format_table(HEADER, rows))
    print("\nCPU microseconds per token (cores in use)")
    print(format_table(("sessions", *PROCESSES), cpu_rows))


def _fake_work(step_ms: float | None, *, busy: bool, threads: int) -> FakeWork | None:
    if step_ms is None:
        return None
    if threads:
        torch.set_num_threads(threads)
    return FakeWork.busy(step_ms) if busy else FakeWork(step_ms)


if __name__ == "__main__":
    app()
