"""What `--quantize int8` gains and changes.

Regime: greedy, 64 new tokens, the end of text ignored, all requests at once, prefix cache off; the
two engines take turns on the same prompts in one process. Speed: prompts of 45 tokens that share
nothing. Answers: a few ordinary questions.
Judged by: tokens per second as a ratio, and how many tokens of an answer come before the first one
that differs from the unquantised engine's.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch
import typer
from transformers import AutoTokenizer

from benchmarks.lib.headrace_engine import TimedEngine, greedy_requests
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.workload import PromptMaker
from headrace.models.conversation import ConversationEncoder
from headrace.models.loading import DTypeName, QuantizeName, load_model
from headrace.models.store import resolve_model

PROMPT_TOKENS, NEW_TOKENS = 45, 64
KV_POOL_BYTES = 512 << 20
KINDS: tuple[QuantizeName, ...] = ("none", "int8")

QUESTIONS = (
    "What is the capital of France?",
    "Explain how a water wheel works.",
    "Write a short story about a lighthouse keeper.",
    "List three healthy breakfasts.",
    "What is the difference between a list and a tuple in Python?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me advice for a job interview.",
    "Summarize the plot of Romeo and Juliet.",
    "How do vaccines work?",
    "Write a haiku about autumn.",
    "What should I pack for a week in the mountains?",
)

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_int8
  python -m benchmarks.bench_int8 --batch 1,16 --repetitions 5
"""


def make_engine(path: Path, dtype: DTypeName, kind: QuantizeName) -> TimedEngine:
    """One of the two engines, started."""
    loaded = load_model(path, dtype=dtype, device="cpu", quantize=kind)
    return TimedEngine(loaded, kv_pool_bytes=KV_POOL_BYTES)


def num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference."""
    pairs = zip(left, right, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(left))


def main(
    model: Annotated[str, typer.Option(help="alias, folder or hub id")] = "smollm2-135m",
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option()] = "bfloat16",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    batch: Annotated[str, typer.Option(help="requests at once, comma-separated")] = "1,8,32,64",
    repetitions: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
) -> None:
    """Speed and changed answers of int8 weights."""
    torch.set_num_threads(threads)
    path = Path(resolve_model(model))
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = PromptMaker(tokenizer)
    engines = {kind: make_engine(path, dtype, kind) for kind in KINDS}
    about = {"model": path.name, "dtype": dtype, "threads": threads}
    table: list[list[str]] = []
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        for size in map(int, batch.split(",")):
            row = speed(engines, prompts, size, repetitions)
            speeds = [number(row["tok_s"][kind]) for kind in KINDS]
            table.append([str(size), *speeds, f"{row['speedup']:.2f}"])
            write_line(results, row | about)
        print(format_table(["requests", f"{dtype} tok/s", "int8 tok/s", "ratio"], table))
        row = changes(engines, ConversationEncoder(tokenizer))
        print(
            f"of {len(QUESTIONS)} answers {row['same_answers']} are the same; the first other token"
            f" is number {row['first_difference_median']:.0f} of {NEW_TOKENS} (median)"
        )
        write_line(results, row | about)
    for one in engines.values():
        one.engine.stop()


def speed(
    engines: dict[QuantizeName, TimedEngine], prompts: PromptMaker, size: int, repetitions: int
) -> dict[str, Any]:
    """Tokens per second at one batch size."""
    times_s: dict[QuantizeName, list[float]] = {kind: [] for kind in engines}
    for repetition in range(repetitions):
        batch = prompts.prompts(size, PROMPT_TOKENS, seed=f"{size} {repetition}")
        for kind, engine in engines.items():
            done = engine.run(greedy_requests(batch, NEW_TOKENS))
            times_s[kind].append(max(row[-1] for row in done.times_s) - done.started_s)
    speeds = {kind: size * NEW_TOKENS / median(values) for kind, values in times_s.items()}
    return {
        "bench": "int8",
        "batch": size,
        "repetitions": repetitions,
        "tok_s": speeds,
        "speedup": speeds["int8"] / speeds["none"],
    }


def changes(
    engines: dict[QuantizeName, TimedEngine], encoder: ConversationEncoder
) -> dict[str, Any]:
    """How far the answers are the same."""
    prompts = [encoder.encode_messages([{"role": "user", "content": text}]) for text in QUESTIONS]
    requests = greedy_requests(prompts, NEW_TOKENS)
    answers = {kind: engine.run(requests).token_ids for kind, engine in engines.items()}
    equal = list(map(num_equal, answers["none"], answers["int8"]))
    return {
        "bench": "int8_answers",
        "same_answers": sum(count == NEW_TOKENS for count in equal),
        "first_difference_median": median(equal),
    }


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
