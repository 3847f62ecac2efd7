"""One `headrace bench` from its options to its exit code.

Owns the order of things: what can be found wrong is found before the first request is sent.
"""

import asyncio
import signal
import sys
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.deploy.bench.http_way import HttpWay
from headrace.deploy.bench.kafka_way import KafkaWay
from headrace.deploy.bench.live import LiveFigures
from headrace.deploy.bench.load import Load
from headrace.deploy.bench.picture import draw
from headrace.deploy.bench.report import Measured, reasons_to_fail, report_of, table
from headrace.deploy.bench.rows import RowFile
from headrace.deploy.bench.run import LoadRun
from headrace.deploy.bench.thresholds import Threshold
from headrace.deploy.bench.way import Way
from headrace.deploy.commands.output import write, write_json
from headrace.deploy.console import fail, note
from headrace.deploy.plotting import new_figure, save
from headrace.schemas.settings import Settings

MIN_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line says."""

    load: Load
    http: str | None
    api_key: str | None
    tenant: str
    max_in_flight: int
    drain_timeout_s: float
    thresholds: tuple[Threshold, ...]
    as_json: bool
    out: Path | None
    plot: Path | None


async def run_bench(settings: Settings, options: BenchOptions) -> int:
    """Run it, print the report; returns the exit code.

    Raises: HeadraceError, OSError before anything is sent. Cancel: what runs goes on; only SIGINT
    and SIGTERM end a run in order.
    """
    if options.plot is not None:
        _check_plot(options.plot)
    run_id = f"bench-{uuid.uuid4().hex[:10]}"
    schedule = options.load.schedule(run_id)
    way = _way(settings, options)
    async with AsyncExitStack() as stack:
        rows = stack.enter_context(RowFile(options.out)) if options.out else None
        run = LoadRun(
            schedule,
            way,
            max_in_flight=options.max_in_flight,
            drain_timeout_s=options.drain_timeout_s,
            on_end=rows.write if rows else lambda _exchange: None,
        )
        stack.push_async_callback(way.stop)
        await way.start(run)
        await _run_watched(run)
    return _conclude(run, options, run_id)


def _way(settings: Settings, options: BenchOptions) -> Way:
    if options.http is not None:
        return HttpWay(options.http, api_key=options.api_key)
    return KafkaWay(settings, tenant=options.tenant)


def _check_plot(path: Path) -> None:
    """An empty picture now says what would be wrong with the real one in an hour."""
    save(new_figure()[0], path)


async def _run_watched(run: LoadRun) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _interrupt, run)
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(LiveFigures(run).watch(), name="bench.live")
            try:
                await run.run()
            finally:
                watching.cancel()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _interrupt(run: LoadRun) -> None:
    if not run.interrupted:
        note("stopping: what runs is cancelled (Ctrl-C once more waits for nothing)")
    run.interrupt()


def _conclude(run: LoadRun, options: BenchOptions, run_id: str) -> int:
    measured = _measured(run, options.load.warm_up_s)
    report = report_of(measured, _told(options, run_id), options.thresholds)
    reasons = reasons_to_fail(measured, options.thresholds, interrupted=run.interrupted)
    if options.as_json:
        write_json({**report, "passed": not reasons, "reasons": reasons})
    else:
        write(table(report) + "\n")
    if not report["kept_up"]:
        lag_s = report["latency_s"]["generator_lag"]["p99"]
        note(f"the generator did not keep up: p99 of its own lag is {lag_s:.3f} s (in the figures)")
    if options.plot is not None:
        draw(measured, options.plot, title=_title(report))
    sys.stdout.flush()
    for reason in reasons:
        fail(reason)
    return 1 if reasons else 0


def _measured(run: LoadRun, warm_up_s: float) -> Measured:
    sending_s, recorder, schedule = run.sending_s or 0.0, run.recorder, run.schedule
    end_s = sending_s
    if sending_s - warm_up_s < MIN_WINDOW_S:
        end_s = max(recorder.seconds, default=0) + 1.0
    return Measured(
        recorder=recorder,
        start_s=warm_up_s,
        end_s=max(end_s, warm_up_s),
        sessions={
            "begun": schedule.num_sessions,
            "complete": schedule.num_complete,
            "given_up": schedule.num_given_up,
            "cut": schedule.num_cut,
        },
    )


def _told(options: BenchOptions, run_id: str) -> dict[str, Any]:
    """The options in the report, so that it can be run again."""
    load = options.load
    recorded = load.recording is not None
    return {
        "run_id": run_id,
        "seed": load.seed,
        "way": options.http or "kafka",
        "arrivals": "recorded" if recorded else load.spacing,
        "rate_per_s": None if recorded else load.rate_per_s,
        "from": str(load.recording) if recorded else None,
        "speed": load.speed if recorded else None,
        "shapes": [] if recorded else [shape.model_dump(mode="json") for shape in load.shapes],
        "duration_s": load.duration_s,
        "max_requests": load.max_requests,
        "warm_up_s": load.warm_up_s,
        "max_in_flight": options.max_in_flight,
        "drain_timeout_s": options.drain_timeout_s,
    }


def _title(report: dict[str, Any]) -> str:
    options, requests = report["options"], report["requests"]
    pace = options["arrivals"]
    if options["rate_per_s"] is not None:
        pace = f"{options['rate_per_s']:g} sessions/s, {pace}"
    return (
        f"{pace}: {requests['requests']} requests, {requests['finished']} finished, "
        f"{report['per_second']['output_tok_s']:.0f} tokens/s (seed {options['seed']})"
    )
