"""What finished requests leave in Redis.

Regime: one real worker, Kafka and Valkey; short requests, 100 at once, half of them without a
session, half in conversations of ten turns; the memory that Valkey says it uses, and the keys of
each kind with their mean size.
Judged by: bytes per finished request, which must not grow; all keys but fences must have a time to
live.
"""

import asyncio
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from benchmarks.lib.answering import Answering, answering
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import OnStep, progress

TURNS = 10
AT_ONCE = 100
SAMPLE = 50
"""Every so many-th key is measured."""

NUM_LAYERS = 2

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_redis
  python -m benchmarks.bench_redis --requests 2000 --every 500
"""


def main(
    requests: Annotated[int, typer.Option(min=10)] = 10_000,
    every: Annotated[int, typer.Option(min=1, help="requests between two readings")] = 2_000,
    out: Annotated[Path | None, typer.Option(help="also add the JSON line to this file")] = None,
) -> None:
    """Memory of Redis over many requests."""
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("redis"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-redis-")))
        row = asyncio.run(_measure(folder, requests, every, on_step))
        print(_table(row), end="\n\n")
        write_line(results, row)


async def _measure(folder: Path, requests: int, every: int, on_step: OnStep) -> dict[str, Any]:
    async with answering(folder, 1, num_layers=NUM_LAYERS) as run:
        client = Redis.from_url(run.valkey.url)
        try:
            readings = [{"requests": 0, "used_mb": await _used_mb(client)}]
            while (done := readings[-1]["requests"]) < requests:
                on_step(f"{done:,} of {requests:,}")
                await _ask(run, int(done), min(every, requests - int(done)))
                readings.append({"requests": done + every, "used_mb": await _used_mb(client)})
            return {
                "bench": "redis",
                "requests": requests,
                "readings": readings,
                "keys": await _keys(client),
            }
        finally:
            await client.aclose()


async def _ask(run: Answering, first: int, count: int) -> None:
    """`count` requests, AT_ONCE at a time."""
    for begin in range(first, first + count, AT_ONCE):
        names = []
        for index in range(begin, min(begin + AT_ONCE, first + count)):
            body: dict[str, Any] = {
                "request_id": f"q{index}",
                "messages": [{"role": "user", "content": f"question {index}"}],
                "max_tokens": 4,
                "temperature": 0,
            }
            session = f"s{index // (2 * TURNS)}" if index % 2 else None
            names.append(await run.pipeline.ask(body, key=session))
        await run.pipeline.finished(names, timeout_s=120)


async def _used_mb(client: "Redis") -> float:
    found: Any = await client.info("memory")
    return float(round(found["used_memory"] / 2**20, 1))


async def _keys(client: "Redis") -> dict[str, dict[str, float]]:
    """Number, mean bytes of a sample, and how many have no time to live, for each kind of key."""
    kinds: defaultdict[str, list[bytes]] = defaultdict(list)
    async for key in client.scan_iter(count=1000):
        kinds[key.decode().split(":")[1]].append(key)
    found: dict[str, dict[str, float]] = {}
    for kind, keys in sorted(kinds.items()):
        sizes = [await client.memory_usage(key) or 0 for key in keys[::SAMPLE]]
        lasting = [key for key in keys if await client.ttl(key) == -1]
        found[kind] = {
            "number": len(keys),
            "mean_bytes": round(sum(sizes) / len(sizes)),
            "without_ttl": len(lasting),
        }
    return found


def _table(row: dict[str, Any]) -> str:
    memory = format_table(
        ["requests", "used MB"],
        [[number(one["requests"]), number(one["used_mb"], digits=1)] for one in row["readings"]],
    )
    keys = format_table(
        ["kind of key", "number", "mean bytes", "without TTL"],
        [
            [kind, *(number(one[name]) for name in ("number", "mean_bytes", "without_ttl"))]
            for kind, one in row["keys"].items()
        ],
    )
    return f"{memory}\n\n{keys}"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
