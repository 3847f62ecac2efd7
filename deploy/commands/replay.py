"""`headrace replay`: recorded requests answered again, and compared."""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from headrace.deploy.commands.options import ENGINE, KAFKA, examples, with_settings
from headrace.deploy.commands.range_flags import From, Last, Offsets, Sessions, To, selection_of
from headrace.deploy.commands.report_flags import (
    AllowDifferent,
    AllowDrift,
    CheckDrift,
    Json,
    Keep,
    MinCompared,
    NamespaceId,
    Outputs,
    PlotFile,
    ReportFile,
    Silence,
    Workers,
    show,
)
from headrace.deploy.console import note
from headrace.deploy.dead_letter_text import printable
from headrace.deploy.programs import with_model
from headrace.deploy.replaying.dump_file import check_dump
from headrace.deploy.replaying.pace import Pace
from headrace.deploy.replaying.recording import record
from headrace.deploy.replaying.report import Gate
from headrace.deploy.replaying.selection import Selection
from headrace.deploy.replaying.trial import Trial, TrialOptions
from headrace.deploy.replaying.trial import replay as run_replay
from headrace.schemas.settings import Settings

T = TypeVar("T")

REPLAY_FLAGS = (
    *KAFKA,
    *("redis", "drain_timeout_s", "session_timeout_s", "max_request_bytes"),
    *ENGINE,
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _pace(text: str) -> Pace:
    try:
        return Pace.parse(text)
    except ValueError as problem:
        raise typer.BadParameter(f"{printable(text)!r} {problem}") from problem


@app.command(
    epilog=examples(
        "headrace replay --last 500 --max-batch-size 8",
        "headrace replay yesterday.jsonl.zst --model ./candidate --plot replay.png",
        "headrace replay --from 2h --to 1h --session s1 --json",
        "headrace replay yesterday.jsonl.zst --allow-drift 0.02 --report rows.jsonl",
    )
)
@with_settings(*REPLAY_FLAGS, errors_only=True)
def replay(
    settings: Settings,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A dump; without one, the live topics are read."),
    ] = None,
    offsets: Offsets = None,
    since: From = None,
    until: To = None,
    session: Sessions = None,
    last: Last = None,
    pace: Annotated[
        Pace | None,
        typer.Option(
            parser=_pace,
            metavar="max|original|FACTOR",
            help="How fast to ask; default max, 10 is ten times as fast as then.",
        ),
    ] = None,
    max_in_flight: Annotated[
        int, typer.Option(min=1, max=100_000, help="Requests asked and not answered yet.")
    ] = 256,
    workers: Workers = 1,
    replay_id: NamespaceId = None,
    timeout: Silence = 120.0,
    keep: Keep = False,
    check_drift: CheckDrift = True,
    allow_drift: AllowDrift = 0.0,
    allow_different: AllowDifferent = 0.0,
    min_compared: MinCompared = 1,
    plot: PlotFile = None,
    report: ReportFile = None,
    as_json: Json = False,
) -> int:
    """Answer recorded requests again, with workers, topics, group and Redis keys of its own, and
    compare each answer with the recorded one, token by token.

    Nothing is written to the live topics, group or keys. Exit code 1 if the answers differ by more
    than is allowed.
    """
    selection = selection_of(offsets, since, until, session, last)
    if source is not None and selection != Selection():
        raise typer.BadParameter("a dump is replayed as a whole: make a smaller one")
    options = TrialOptions(
        id=replay_id,
        num_workers=workers,
        pace=pace or Pace(),
        max_in_flight=max_in_flight,
        silence_s=timeout,
        checks_drift=check_drift,
        keep=keep,
    )
    trial = run_until_signal(_run(settings, source, selection, options))
    gate = Gate(allow_drift, allow_different, min_compared)
    return show(trial, gate, Outputs(plot, report, as_json))


async def _run(
    settings: Settings, source: Path | None, selection: Selection, options: TrialOptions
) -> Trial:
    if source is not None:
        contents = await asyncio.to_thread(check_dump, source)
        return await run_replay(settings, source, contents, options)
    settings = with_model(settings)  # a name that is wrong is found before Kafka is read
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as folder:
        source = Path(folder) / "live.jsonl.zst"
        done = await record(settings, selection, source)
        note(f"recorded: {done}")
        contents = await asyncio.to_thread(check_dump, source)
        return await run_replay(settings, source, contents, options)


def run_until_signal(
    work: Coroutine[Any, Any, T], interrupt: Callable[[], bool] | None = None
) -> T:
    """`asyncio.run`, where SIGTERM and SIGHUP clean up as Ctrl-C does.

    `interrupt` is called first at a signal, Ctrl-C too; if it returns True, `work` goes on.
    """

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one

        def stop() -> None:
            if interrupt is None or not interrupt():
                task.cancel()

        numbers = [signal.SIGTERM, signal.SIGHUP]
        for number in numbers if interrupt is None else [*numbers, signal.SIGINT]:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
                asyncio.get_running_loop().add_signal_handler(number, stop)
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
