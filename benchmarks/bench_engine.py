"""How near the engine comes to the machine's limit, and how far its peers are.

Regime: greedy, exactly as many new tokens as asked for, all requests at once, prompts that share
nothing; generated tokens per second over the whole run, prefill included. Engines take turns in one
run, each in a process of its own that sleeps while others are measured; repetitions during which
other processes computed are repeated. Figures are the best of the repetitions left alone, their
medians stand in the JSON lines.
Judged by: the linear layers of the same run alone (`lib/limit.py`), as a ratio.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from transformers import AutoTokenizer

from benchmarks.lib.engine_tables import Row, latency_table, long_prompt_table, speed_table
from benchmarks.lib.engines import (
    BATCHING,
    BY_DEFAULT,
    LIMIT,
    LLAMA,
    NAMES,
    OPENVINO,
    VLLM,
    WITH_PREFIX_CACHE,
    Peer,
    Setup,
    started,
)
from benchmarks.lib.figures import best_of_phases, figures
from benchmarks.lib.process import ChildEngine, Repetition
from benchmarks.lib.report import write_line
from benchmarks.lib.rounds import OnStep, cold_and_again, progress, take_turns
from benchmarks.lib.workload import PromptMaker
from headrace.models.store import resolve_model

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_engine
  python -m benchmarks.bench_engine --batch 1,8 --repetitions 5 --dtype float32
  python -m benchmarks.bench_engine --only limit,headrace --out benchmarks/results/engine.jsonl
  python -m benchmarks.bench_engine --openvino-python ov/bin/python --openvino-model ov-smollm2
  python -m benchmarks.bench_engine --llama-python lc/bin/python --llama-model smollm2-bf16.gguf
"""


@dataclass(frozen=True)
class Bench:
    """What is measured, and with whom."""

    setup: Setup
    names: list[str]
    batches: list[int]
    prompt_tokens: int
    new_tokens: int
    repetitions: int
    log_path: Path

    def row(self, bench: str, engine: ChildEngine) -> Row:
        """The fields that all result rows have."""
        return {
            "bench": bench,
            "engine": engine.name,
            "engine_versions": engine.versions,
            "model": Path(self.setup.model).name,
            "dtype": self.setup.dtype,
            "threads": self.setup.threads,
        }


def main(
    model: Annotated[str, typer.Option(help="alias, folder or hub id")] = "smollm2-135m",
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option()] = "bfloat16",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    batch: Annotated[str, typer.Option(help="requests at once, comma-separated")] = "1,8,32,64",
    prompt_tokens: Annotated[int, typer.Option(min=40)] = 45,
    new_tokens: Annotated[int, typer.Option(min=2)] = 64,
    long_prompt_tokens: Annotated[
        int, typer.Option(min=0, help="prompt for the first token cold and again; 0: leave it out")
    ] = 981,
    repetitions: Annotated[int, typer.Option(min=1, help="undisturbed ones per engine")] = 3,
    prefix_cache: Annotated[bool, typer.Option(help="on for all engines that have one")] = False,
    only: Annotated[
        str, typer.Option(help=f"comma-separated, of {', '.join(NAMES)}", show_default=False)
    ] = ",".join(BY_DEFAULT),
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
    openvino_python: Annotated[Path | None, typer.Option()] = None,
    openvino_model: Annotated[Path | None, typer.Option(help="exported by optimum-cli")] = None,
    vllm_python: Annotated[Path | None, typer.Option()] = None,
    llama_python: Annotated[Path | None, typer.Option(help="one with xllamacpp")] = None,
    llama_model: Annotated[Path | None, typer.Option(help="a GGUF file in BF16")] = None,
) -> None:
    """Tokens per second of the engine and its peers, against the limit of the same run."""
    names = only.split(",")
    if unknown := set(names) - set(NAMES):
        raise typer.BadParameter(f"no engine {', '.join(sorted(unknown))}: {', '.join(NAMES)}")
    folder = str(resolve_model(model))
    peers = {
        OPENVINO: Peer(openvino_python, openvino_model),
        VLLM: Peer(vllm_python, folder),
        LLAMA: Peer(llama_python, llama_model),
    }
    batches = [int(word) for word in batch.split(",")]
    log_path = Path(tempfile.mkdtemp(prefix="headrace-bench-")) / "engines.log"
    setup = Setup(folder, dtype, threads, max(batches), prefix_cache, peers)
    bench = Bench(setup, names, batches, prompt_tokens, new_tokens, repetitions, log_path)
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("engines"))
        maker = PromptMaker(AutoTokenizer.from_pretrained(folder))
        speeds, missing = measure_speed(bench, maker, on_step)
        longs: list[Row] = []
        if long_prompt_tokens:
            longs = measure_long_prompt(bench, maker, long_prompt_tokens, on_step)
        print(speed_table(speeds, missing), end="\n\n")
        print(latency_table(speeds), end="\n\n")
        print(long_prompt_table(longs), end="\n\n")
        for row in speeds + longs:
            write_line(results, row)


def measure_speed(
    bench: Bench, maker: PromptMaker, on_step: OnStep
) -> tuple[list[Row], dict[str, str]]:
    """A row per engine and batch, and why engines are missing."""
    rows: list[Row] = []
    with started(bench.setup, bench.names, bench.log_path, on_step) as (engines, missing):
        for batch in bench.batches:

            def make_prompts(number: int, batch: int = batch) -> list[list[int]]:
                return maker.prompts(batch, bench.prompt_tokens, seed=f"{batch}:{number}")

            def say(text: str, batch: int = batch) -> None:
                on_step(f"batch {batch}: {text}")

            done = take_turns(
                engines,
                make_prompts,
                bench.new_tokens,
                repetitions=bench.repetitions,
                on_step=say,
            )
            rows += _speed_rows(bench, engines, done, batch)
    return rows, missing


def _speed_rows(
    bench: Bench, engines: list[ChildEngine], done: dict[str, list[Repetition]], batch: int
) -> list[Row]:
    found = {name: figures(runs) for name, runs in done.items()}
    rows = []
    for engine in engines:
        row = bench.row("engine", engine) | {
            "prefix_cache": bench.setup.prefix_cache,
            "prompt_tokens": bench.prompt_tokens,
            "new_tokens": bench.new_tokens,
            "batch": batch,
            **asdict(found[engine.name]),
            "startup_s": engine.startup_s,
            "build_s": engine.build_s,
        }
        for field, other in (("of_limit", LIMIT), ("of_transformers_batching", BATCHING)):
            if other in found:
                row[field] = found[engine.name].tok_s_best / found[other].tok_s_best
        if engine.name == LIMIT:
            row["kinds_tok_s"] = best_of_phases(done[LIMIT], batch * bench.new_tokens)
        rows.append(row)
    return rows


def measure_long_prompt(
    bench: Bench, maker: PromptMaker, num_tokens: int, on_step: OnStep
) -> list[Row]:
    """A row per engine that has a prefix cache: the first token of a long prompt, new and seen."""
    names = [name for name in bench.names if name in WITH_PREFIX_CACHE]
    setup = bench.setup.with_prefix_cache()
    with started(setup, names, bench.log_path, on_step) as (engines, _):
        done = cold_and_again(
            engines,
            lambda number: maker.prompts(1, num_tokens, seed=f"long:{number}")[0],
            repetitions=bench.repetitions,
            on_step=lambda text: on_step(f"long prompt: {text}"),
        )
        rows = []
        for engine in engines:
            cold, again = (figures(runs) for runs in done[engine.name])
            rows.append(
                bench.row("engine_long_prompt", engine)
                | {
                    "prefix_cache": True,
                    "prompt_tokens": num_tokens,
                    "cold_ms": 1e3 / cold.tok_s_median,
                    "again_ms": 1e3 / again.tok_s_median,
                    "repetitions": min(cold.repetitions, again.repetitions),
                    "disturbed": cold.disturbed or again.disturbed,
                }
            )
    return rows


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
