"""Whether a worker's engine keeps its size.

Regime: short requests of mixed lengths, some cut off, a fixed number at once, prefix cache on;
resident size of the process every 200 requests.
Judged by: growth from the first fifth of the requests to the last reading, which should be nothing.
"""

import queue
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from benchmarks.lib.headrace_engine import GREEDY, STALL_S, build_engine
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import OnStep, progress
from benchmarks.lib.workload import PromptMaker
from headrace.models.engine import Engine
from headrace.models.loading import load_model
from headrace.models.request import EngineOutput, EngineRequest
from headrace.models.store import resolve_model

KV_POOL_MB = 256
"""Small, so that the prefix cache fills it early: memory that was never touched is not resident."""

CANCELLED_PART = 0.05
PROMPT_TOKENS = (40, 90)
NEW_TOKENS = (1, 16)

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_memory
  python -m benchmarks.bench_memory --requests 20000 --every 1000 --at-once 64
"""


@dataclass(frozen=True)
class Reading:
    """The process after so many requests."""

    requests: int
    resident_mb: float
    elapsed_s: float


def main(
    model: Annotated[str, typer.Option(help="alias, folder or hub id")] = "smollm2-135m",
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option()] = "bfloat16",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    requests: Annotated[int, typer.Option(min=10)] = 2000,
    every: Annotated[int, typer.Option(min=1, help="requests between two readings")] = 200,
    at_once: Annotated[int, typer.Option(min=1)] = 32,
    kv_pool_mb: Annotated[int, typer.Option(min=1)] = KV_POOL_MB,
    out: Annotated[Path | None, typer.Option(help="also add the JSON line to this file")] = None,
) -> None:
    """Resident size over many requests."""
    torch.set_num_threads(threads)
    loaded = load_model(resolve_model(model), dtype=dtype, device="cpu")
    maker = PromptMaker(loaded.tokenizer)
    arrivals: queue.SimpleQueue[list[EngineOutput]] = queue.SimpleQueue()
    engine = build_engine(
        loaded,
        on_outputs=arrivals.put,
        max_batch_size=at_once,
        prefix_caching=True,
        kv_pool_bytes=kv_pool_mb << 20,
    )
    engine.start()
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("memory"))
        todo = make_requests(maker, requests)
        readings = drive(engine, arrivals, todo, at_once=at_once, every=every, on_step=on_step)
        engine.stop()
        print(_table(readings), end="\n\n")
        write_line(
            results,
            {
                "bench": "memory",
                "model": model,
                "dtype": dtype,
                "threads": threads,
                "requests": requests,
                "at_once": at_once,
                "kv_pool_mb": kv_pool_mb,
                "growth_mb": growth_mb(readings),
                "resident_mb": {str(one.requests): one.resident_mb for one in readings},
            },
        )


def drive(
    engine: Engine,
    arrivals: queue.SimpleQueue[list[EngineOutput]],
    todo: Iterator[EngineRequest],
    *,
    at_once: int,
    every: int,
    on_step: OnStep,
) -> list[Reading]:
    """Run all requests, `at_once` at any time, and read the size `every` so many.

    Raises: the EngineError of a request that failed; queue.Empty if the engine stalls.
    """
    rng = random.Random("cancelled")
    started_s = time.monotonic()
    readings = [Reading(0, resident_mb(), 0.0)]
    num_open = num_ended = 0
    for request in islice(todo, at_once):
        engine.add(request)
        num_open += 1
    while num_open:
        for output in arrivals.get(timeout=STALL_S):
            if output.error is not None:
                raise output.error
            if not output.is_last:
                if rng.random() < CANCELLED_PART:
                    engine.cancel(output.key)
                continue
            num_ended += 1
            if (following := next(todo, None)) is not None:
                engine.add(following)
            else:
                num_open -= 1
            if num_ended % every == 0:
                on_step(f"{num_ended} requests")
                readings.append(Reading(num_ended, resident_mb(), time.monotonic() - started_s))
    return readings


def make_requests(maker: PromptMaker, count: int) -> Iterator[EngineRequest]:
    """Requests of mixed lengths, made as they are needed."""
    rng = random.Random("memory")
    for index in range(count):
        (prompt,) = maker.prompts(1, rng.randint(*PROMPT_TOKENS), seed=f"memory:{index}")
        yield EngineRequest(str(index), prompt, rng.randint(*NEW_TOKENS), sampling=GREEDY)


def resident_mb() -> float:
    """Resident size of this process."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status says no VmRSS")


def growth_mb(readings: list[Reading]) -> float:
    """From the reading after a fifth of the requests, when all caches are warm, to the last."""
    last = readings[-1]
    warm = next(one for one in readings if one.requests * 5 >= last.requests)
    return last.resident_mb - warm.resident_mb


def _table(readings: list[Reading]) -> str:
    lines: list[list[Any]] = [
        [
            number(one.requests),
            number(one.resident_mb, digits=1),
            number(one.resident_mb - readings[0].resident_mb, digits=1),
            number(one.elapsed_s, digits=1),
        ]
        for one in readings
    ]
    return format_table(["requests", "resident, MB", "since start, MB", "after, s"], lines)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
