"""`python -m tests.chaos`: many requests, many faults, and what became of each request."""

import asyncio
import faulthandler
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import logging as transformers_logging

from tests.chaos import report
from tests.chaos.plan import EVERY_KIND, FaultKind, Plan, make_plan
from tests.chaos.run import Run, Watcher, limit_s

DEADLY_IS_ON = True
"""Whether runs draw the deadly request, too, where nobody says."""

HARD_LIMIT_S = 60.0
"""After the run's own limit: a loop that does not turn ends the process."""

_EXAMPLES = """\b
Examples:
  python -m tests.chaos
  python -m tests.chaos --seed 3 --requests 300 --faults 10
  python -m tests.chaos --only "worker killed" --only "Redis flushed" --faults 6 --keep
  make chaos ARGS="--seed 3 --json chaos.json"
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=_EXAMPLES)
def chaos(
    seed: Annotated[int, typer.Option(help="what the plan is drawn from")] = 1,
    requests: Annotated[int, typer.Option(min=1, help="requests that must be answered")] = 2000,
    faults: Annotated[int, typer.Option(min=0, help="faults that strike meanwhile")] = 50,
    workers: Annotated[int, typer.Option(min=2, max=8, help="worker processes")] = 3,
    only: Annotated[
        list[FaultKind] | None, typer.Option(help="this kind of fault; may be given again")
    ] = None,
    deadly: Annotated[
        bool, typer.Option(help="with requests that end each worker that runs them")
    ] = DEADLY_IS_ON,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="where the JSON line goes, too")
    ] = None,
    keep: Annotated[bool, typer.Option(help="keep the folder with all logs")] = False,
) -> None:
    """Kill, stop, starve and cut everything, and check every answer.

    Exit code 1 if anything is lost, doubled, different, out of order or uncommitted.
    """
    kinds = tuple(only or (kind for kind in EVERY_KIND if deadly or kind is not _DEADLY))
    plan = make_plan(seed, requests=requests, faults=faults, kinds=kinds)
    transformers_logging.disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    logging.basicConfig(filename=folder / "harness.log", format="%(asctime)s %(name)s %(message)s")
    code = 1
    try:
        code = _run(plan, folder, workers, json_file)
    finally:
        if code == 0 and not keep:
            shutil.rmtree(folder)
        else:
            print(f"logs: {folder}", file=sys.stderr)
    raise typer.Exit(code)


_DEADLY = FaultKind.DEADLY_REQUEST


def _run(plan: Plan, folder: Path, workers: int, json_file: Path | None) -> int:
    faulthandler.dump_traceback_later(limit_s(plan) + HARD_LIMIT_S, exit=True)
    with _watched(plan) as watcher:
        watcher.say(
            f"seed {plan.seed}: {plan.num_requests} requests, {len(plan.faults)} faults, "
            f"{plan.length_s:.0f} s, logs in {folder}"
        )
        run = Run(plan, folder, watcher, workers=workers)
        asyncio.run(run.run())
    faulthandler.cancel_dump_traceback_later()
    return _show(run, json_file)


def _show(run: Run, json_file: Path | None) -> int:
    found = report.summary(run.book, run.plan, run.durations) | {"ties": run.num_ties}
    print(report.table(run.book))
    for line in report.problem_lines(run.book):
        print(line)
    line = json.dumps(found)
    print(line)
    if json_file is not None:
        json_file.write_text(line + "\n", "utf-8")
    return 1 if run.book.problems else 0


@contextmanager
def _watched(plan: Plan) -> Iterator[Watcher]:
    """A bar on a terminal; plain lines elsewhere."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield _Lines(plan).watcher
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        requests = progress.add_task("answered", total=plan.num_requests)
        faults = progress.add_task("faults", total=len(plan.faults))

        def count(num_answered: int, num_struck: int) -> None:
            progress.update(requests, completed=num_answered)
            progress.update(faults, completed=num_struck)

        yield Watcher(progress.console.print, count)


class _Lines:
    """What there is to say, a line each, and every tenth of the answers."""

    def __init__(self, plan: Plan) -> None:
        self._total, self._tenths = plan.num_requests, 0
        self.watcher = Watcher(self._say, self._count)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _count(self, num_answered: int, num_struck: int) -> None:
        tenths = 10 * num_answered // self._total
        if tenths > self._tenths:
            self._tenths = tenths
            self._say(f"answered {num_answered} of {self._total}, {num_struck} faults")


if __name__ == "__main__":
    app()
