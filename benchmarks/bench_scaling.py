"""What readers notice when workers come and go with the load, and how soon a backlog is gone.

Regime: real Kafka, Valkey and worker processes on this machine, the autoscaler of `headrace up`
with 0 to 2 workers of one thread each, a small model, greedy answers. First a queue that was there
before any worker; then a load that rises and falls, with joins and drains under running streams.
Judged by: no answer lost, doubled or different; the longest pause of any stream at a join or a
drain, 2 s at most (other pauses are shown, too: they are the machine's); the lag back at 0, and the
workers, too. It stops by itself, within bounds.
"""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lib.answering import Answering, answering
from benchmarks.lib.figures import percentile
from benchmarks.lib.process import ROOT
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import progress
from benchmarks.lib.scaling_plot import plot
from benchmarks.lib.scaling_run import Part, ScalingRun, check_answers, scaling
from headrace.deploy.autoscale.policy import Policy
from tests.pipeline import Reply

ALLOWED_PAUSE_S = 2.0
SETTLE_S = 5.0
"""A pause that begins this soon after a join or a drain counts as its."""

TICK_S = 0.25
NUM_WORKERS = 2
NUM_LAYERS = 64
"""So that streams are under way when workers come and go: an answer takes some seconds."""

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_scaling --quick
  python -m benchmarks.bench_scaling --plot docs/images/scaling.png
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked. Units: seconds."""

    queued: int
    tokens: int
    waves: int
    wave_s: float
    policy: Policy


LOW, HIGH = 6, 80
"""Requests that are unfinished at any time in the waves: a finished one is followed by another, so
that the load fits the machine, however fast it is.
"""

FULL = Size(500, 250, 2, 60.0, Policy(0, NUM_WORKERS, target_s=4.0, window_s=10.0))
QUICK = Size(60, 250, 1, 30.0, Policy(0, NUM_WORKERS, target_s=4.0, window_s=6.0))


def main(
    quick: Annotated[bool, typer.Option("--quick", help="a short check")] = False,
    picture: Annotated[Path | None, typer.Option("--plot", help="png or svg to write")] = None,
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
) -> None:
    """The autoscaler on real workers."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("scaling"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-scaling-")))
        parts, rows = asyncio.run(_measure(folder, size, on_step))
        for part in parts:
            print("\n".join(f"{at_s:7.1f} s  {text}" for at_s, text in part.events), end="\n\n")
        print(_table(rows), end="\n\n")
        if picture is not None:
            plot(parts, ROOT / picture)
        for row in rows:
            write_line(results, row)
    if any(row["longest_at_change_s"] > ALLOWED_PAUSE_S for row in rows):
        raise typer.Exit(1)


async def _measure(
    folder: Path, size: Size, on_step: Callable[[str], None]
) -> tuple[list[Part], list[dict[str, Any]]]:
    parts, rows = [], []
    async with answering(folder, 0, num_layers=NUM_LAYERS) as run:
        for title, load in (("queued", _queued), ("waves", _waves)):
            on_step(title)
            async with scaling(run, folder, size.policy, title) as one:
                await load(one, size)
                on_step(f"{title}: answers")
                await one.answered()
                answered_s = one.part.age_s
                on_step(f"{title}: workers go")
                await run.pipeline.all_committed()
                await one.no_worker_left()
            check_answers(one.part.names, run.reply, size.tokens)
            parts.append(one.part)
            rows.append(_row(one.part, run, size, answered_s))
    return parts, rows


async def _queued(one: ScalingRun, size: Size) -> None:
    """All at once; the first worker is not there yet."""
    await one.ask(size.queued, size.tokens)


async def _waves(one: ScalingRun, size: Size) -> None:
    """Low, high, low, high, …, low."""
    for wave in range(2 * size.waves + 1):
        wanted = HIGH if wave % 2 else LOW
        until_s = one.part.age_s + size.wave_s
        while one.part.age_s < until_s:
            await one.ask(max(0, wanted - one.num_unfinished), size.tokens)
            await asyncio.sleep(TICK_S)


def _row(part: Part, run: Answering, size: Size, answered_s: float) -> dict[str, Any]:
    replies = [run.reply(name) for name in part.names]
    pauses = [reply.longest_pause_s for reply in replies]
    of_all, at_change = _longest(part, replies)
    return {
        "bench": "scaling",
        "part": part.title,
        "requests": len(replies),
        "tokens": size.tokens,
        "answered_s": round(answered_s, 1),
        "whole_s": round(part.age_s, 1),
        "speed_tok_s": round(part.speed_tok_s),
        "most_workers": max(one.ready for one in part.samples),
        "scale_events": sum(" -> " in text for _, text in part.events),
        "moved_streams": sum(len(reply.publishers) > 1 for reply in replies),
        "repeated_events": sum(reply.num_dropped for reply in replies),
        "longest_s": round(of_all.length_s, 2),
        "longest_began_s": round(of_all.began_s, 1),
        "longest_at_change_s": round(at_change.length_s, 2),
        "pause_s": {f"p{p}": round(percentile(pauses, p), 2) for p in (50, 99)},
        "allowed_s": ALLOWED_PAUSE_S,
        "lag_at_end": part.samples[-1].records,
    }


@dataclass(frozen=True, slots=True)
class Pause:
    """The longest of many. Units: seconds."""

    length_s: float = 0.0
    began_s: float = 0.0
    """From the start of the part."""


def _longest(part: Part, replies: list[Reply]) -> tuple[Pause, Pause]:
    """Of all, and of those that touch a join or a drain; the others are the machine's."""
    pauses = [
        Pause(later - earlier, earlier - part.began_s)
        for reply in replies
        for earlier, later in pairwise(reply.arrived_s)
    ]
    changes = part.changes_s
    touching = [
        one
        for one in pauses
        if any(one.began_s - SETTLE_S < at_s < one.began_s + one.length_s for at_s in changes)
    ]

    def longest(some: list[Pause]) -> Pause:
        return max(some, key=lambda one: one.length_s, default=Pause())

    return longest(pauses), longest(touching)


def _table(rows: list[dict[str, Any]]) -> str:
    header = ["part", "requests", "answered s", "most workers", "events", "streams moved"]
    return format_table(
        [
            *header,
            "pause p50 s",
            "p99 s",
            "at joins and drains",
            "longest",
            "began at s",
            "lag at the end",
        ],
        [
            [
                row["part"],
                number(row["requests"]),
                number(row["answered_s"], digits=1),
                number(row["most_workers"]),
                number(row["scale_events"]),
                number(row["moved_streams"]),
                *(number(row["pause_s"][key], digits=2) for key in ("p50", "p99")),
                *(number(row[key], digits=2) for key in ("longest_at_change_s", "longest_s")),
                number(row["longest_began_s"], digits=1),
                number(row["lag_at_end"]),
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
