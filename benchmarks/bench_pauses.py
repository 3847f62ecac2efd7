"""How long a reader waits in mid-sentence when something breaks.

Regime: real Kafka, Valkey and worker processes on this machine, some streams of a small model under
way at once; the longest time between two events of each stream that the fault hits. Workers that
are lost are replaced before the next round, and nothing else is asked meanwhile.
Judged by: drain, p99 of 1 s or less; kill -9, the session timeout and 1 s; broker, its downtime
and 3 s; Redis away, as long as that and 1 s, while new requests start within 1 s. Every reader's
text is checked as it comes: an event that repeats with other content, or a gap, ends the run.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lib.answering import Answering, answering
from benchmarks.lib.figures import percentile
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import progress

NUM_WORKERS = 2
AWAY_S = 5.0

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_pauses
  python -m benchmarks.bench_pauses --faults drain,kill --rounds 25
"""


@dataclass
class Pauses:
    """What the readers of one kind of fault saw. Units: seconds."""

    allowed_s: float
    """What a pause may be, beyond what was away for how long."""
    beyond_s: list[float] = field(default_factory=list)
    """Each stream's longest pause less the time that something was away."""
    first_token_s: list[float] = field(default_factory=list)
    """Of requests that came while it was away, where that is promised."""


Fault = Callable[[Answering, list[str], Pauses], Awaitable[None]]


async def drain(run: Answering, names: list[str], found: Pauses) -> None:
    """SIGTERM to one of the workers."""
    await _lose_worker(run, names, found, signal.SIGTERM)


async def kill(run: Answering, names: list[str], found: Pauses) -> None:
    """SIGKILL to one of the workers."""
    await _lose_worker(run, names, found, signal.SIGKILL)


async def _lose_worker(run: Answering, names: list[str], found: Pauses, how: int) -> None:
    pid = run.publisher(names[0])
    hit = [name for name in names if run.publisher(name) == pid]
    os.kill(pid, how)
    await run.until(
        lambda: all(run.publisher(n) != pid or run.reply(n).reader.finished for n in hit)
    )
    found.beyond_s += [run.reply(name).longest_pause_s for name in hit]
    await asyncio.to_thread(run.pipeline.worker(pid).process.wait, 30)


async def join(run: Answering, names: list[str], found: Pauses) -> None:
    """A third worker: partitions move, with their streams; then it is drained."""
    await run.pipeline.start_worker()
    newest = run.alive[-1].process.pid
    await run.more_of(names)
    found.beyond_s += [run.reply(name).longest_pause_s for name in names]
    os.kill(newest, signal.SIGTERM)
    await asyncio.to_thread(run.pipeline.worker(newest).process.wait, 30)


async def broker(run: Answering, names: list[str], found: Pauses) -> None:
    """The only broker is stopped, and started again after AWAY_S."""
    began_s = time.monotonic()
    await asyncio.to_thread(run.kafka.stop)
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(run.kafka.start)
    away_s = time.monotonic() - began_s
    await run.more_of(names)
    found.beyond_s += [run.reply(name).longest_pause_s - away_s for name in names]


async def redis(run: Answering, names: list[str], found: Pauses) -> None:
    """Redis stands still for AWAY_S; new requests come meanwhile."""
    pid = run.valkey.pid
    assert pid is not None
    began_s = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            asked_s = time.monotonic()
            name = await run.ask(max_tokens=8)
            await run.until(lambda name=name: run.reply(name).events)
            found.first_token_s.append(run.reply(name).arrived_s[0] - asked_s)
        await asyncio.sleep(max(0.0, began_s + AWAY_S - time.monotonic()))
    finally:
        os.kill(pid, signal.SIGCONT)
    away_s = time.monotonic() - began_s
    await run.more_of(names)
    found.beyond_s += [run.reply(name).longest_pause_s - away_s for name in names]


FAULTS: dict[str, tuple[Fault, float]] = {
    "drain": (drain, 1.0),
    "kill": (kill, 7.0),  # the session timeout of 6 s, and 1 s
    "join": (join, 2.0),
    "broker": (broker, 3.0),
    "redis": (redis, 1.0),
}
"""How each strikes, and what it may cost."""


def main(
    faults: Annotated[str, typer.Option(help="comma-separated")] = ",".join(FAULTS),
    rounds: Annotated[int, typer.Option(min=1, help="of each fault")] = 10,
    streams: Annotated[int, typer.Option(min=1, help="under way at once")] = 8,
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
) -> None:
    """The pause in mid-sentence, fault by fault."""
    wanted = faults.split(",")
    if unknown := set(wanted) - set(FAULTS):
        raise typer.BadParameter(f"no fault {', '.join(sorted(unknown))}: {', '.join(FAULTS)}")
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("pauses"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-pauses-")))
        rows = asyncio.run(_measure(folder, wanted, rounds, streams, on_step))
        print(_table(rows), end="\n\n")
        for row in rows:
            write_line(results, row)


async def _measure(
    folder: Path, wanted: list[str], rounds: int, streams: int, on_step: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = []
    async with answering(folder, NUM_WORKERS) as run:
        for name in wanted:
            strike, allowed_s = FAULTS[name]
            found = Pauses(allowed_s)
            for turn in range(rounds):
                on_step(f"{name}: {turn + 1} of {rounds}")
                while len(run.alive) < NUM_WORKERS:
                    await run.pipeline.start_worker()
                under_way = await run.streams(streams)
                await strike(run, under_way, found)
                await run.end(under_way)
            rows.append(_row(name, found, rounds))
    return rows


def _row(name: str, found: Pauses, rounds: int) -> dict[str, Any]:
    figures = {
        f"p{percent}": round(percentile(found.beyond_s, percent), 2) for percent in (50, 99, 100)
    }
    firsts = found.first_token_s
    return {
        "bench": "pauses",
        "fault": name,
        "rounds": rounds,
        "streams": len(found.beyond_s),
        "pause_s": figures,
        "allowed_s": found.allowed_s,
        "first_token_max_s": round(max(firsts), 2) if firsts else None,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    header = ["fault", "streams hit", "p50 s", "p99 s", "longest", "allowed", "new requests start"]
    return format_table(
        header,
        [
            [
                row["fault"],
                number(row["streams"]),
                *(number(row["pause_s"][key], digits=2) for key in ("p50", "p99", "p100")),
                number(row["allowed_s"], digits=1),
                number(row["first_token_max_s"], digits=2),
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
