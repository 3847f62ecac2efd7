"""What a scaling rule costs and gains: ours, KEDA's Kafka trigger and an HPA on CPU, simulated.

Regime: a queue model (`lib/scaling_sim.py`) of up to 12 workers and 12 partitions under five shapes
of load; a rebalance costs 1.5 s, a worker 20 s to start (one shape: 120 s). The decision is the
code that `headrace up --autoscale` runs; the others follow their documentation and its defaults.
Judged by: a backlog of 10 s of work soon after a step, few worker hours, few scale events, and no
30 s without a token while there is work. No model is loaded; equal seeds give equal tables.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lib.figures import percentile
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import progress
from benchmarks.lib.scaling_loads import LOADS, Load
from benchmarks.lib.scaling_policies import (
    LAG_THRESHOLD,
    TUNED_LAG_THRESHOLD,
    CpuPolicy,
    KedaLagPolicy,
    OurPolicy,
)
from benchmarks.lib.scaling_sim import Outcome, ScalingPolicy, Simulation

TARGET_S = 10.0
STEADY_S = 30.0
HOUR_S = 3600.0

POLICIES: dict[str, Callable[[], ScalingPolicy]] = {
    "headrace 0..12": OurPolicy,
    "headrace 1..12": partial(OurPolicy, 1),
    f"KEDA lag {LAG_THRESHOLD}": KedaLagPolicy,
    f"KEDA lag {TUNED_LAG_THRESHOLD}": partial(KedaLagPolicy, TUNED_LAG_THRESHOLD),
    "HPA CPU": CpuPolicy,
}

_ALL_LOADS = ",".join(load.name for load in LOADS)

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_autoscaler
  python -m benchmarks.bench_autoscaler --loads step,sawtooth --seed 7
"""


def main(
    loads: Annotated[str, typer.Option(help="comma-separated")] = _ALL_LOADS,
    seed: Annotated[int, typer.Option(help="of the arrivals")] = 0,
    out: Annotated[Path | None, typer.Option(help="also add the JSON lines to this file")] = None,
) -> None:
    """Every policy under every load."""
    known = {load.name: load for load in LOADS}
    wanted = loads.split(",")
    if unknown := set(wanted) - set(known):
        raise typer.BadParameter(f"no load {', '.join(sorted(unknown))}: {', '.join(known)}")
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("autoscaler"))
        rows = []
        for name in wanted:
            for title, make in POLICIES.items():
                on_step(f"{name}: {title}")
                rows.append(row(known[name], title, make(), seed))
        print(_table(rows), end="\n\n")
        for one in rows:
            write_line(results, one)


def row(load: Load, title: str, policy: ScalingPolicy, seed: int) -> dict[str, Any]:
    """One run, as its JSON line."""
    outcome = Simulation(load, policy, seed=seed).run()
    return {
        "bench": "autoscaler",
        "load": load.name,
        "policy": title,
        "seed": seed,
        "requests": len(outcome.ages_s),
        "time_to_target_s": _time_to_target_s(load, outcome),
        "age_s": {f"p{p}": round(percentile(outcome.ages_s, p), 1) for p in (50, 99)},
        "worker_hours": round(outcome.worker_s / HOUR_S, 2),
        "most_workers": outcome.most_workers,
        "scale_events": outcome.events,
        "longest_stall_s": outcome.longest_stall_s,
    }


def _time_to_target_s(load: Load, outcome: Outcome) -> float | None:
    if load.step_s is None:
        return None
    return outcome.time_to_target_s(load.step_s, TARGET_S, STEADY_S)


def _table(rows: list[dict[str, Any]]) -> str:
    header = ["load", "policy", "to target s", "p50 s", "p99 s", "worker h", "most", "events"]
    return format_table(
        [*header, "longest without a token s"],
        [
            [
                one["load"],
                one["policy"],
                number(one["time_to_target_s"]),
                number(one["age_s"]["p50"], digits=1),
                number(one["age_s"]["p99"], digits=1),
                number(one["worker_hours"], digits=2),
                number(one["most_workers"]),
                number(one["scale_events"]),
                number(one["longest_stall_s"], digits=1),
            ]
            for one in rows
        ],
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
