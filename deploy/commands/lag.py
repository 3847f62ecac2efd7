"""`headrace lag`: how far the workers are behind, once or again and again."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Annotated

import typer

from headrace.consumers.lag import Lag
from headrace.consumers.lag_service import LagService
from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import write, write_json
from headrace.deploy.console import note
from headrace.deploy.lag_text import lag_json, lag_lines, lag_table
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

WATCH_INTERVAL_S = 1.0
NUM_OTHER_ROWS = 4
"""Of a live table: header, total, caption, and the line of the cursor."""

Show = Callable[[Lag], None]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace lag",
        "headrace lag --watch",
        "headrace lag --json | jq .seconds",
    )
)
@with_settings(*KAFKA, "group", errors_only=True)
def lag(
    settings: Settings,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it each second, until Ctrl-C.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="The control topic, too, not only requests.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each reading.")
    ] = False,
) -> int:
    """Show the requests that are not finished: how many, how old, how many tokens of work.

    Also those that a worker answers now. Reads only; the workers' group is not joined.
    """
    topic = None if everything else settings.topics.requests
    asyncio.run(_lag(settings, topic, _showing(as_json=as_json, live=watch), watch=watch))
    return 0


async def _lag(
    settings: Settings,
    topic: str | None,
    showing: AbstractContextManager[Show],
    *,
    watch: bool,
) -> None:
    service = LagService(settings)
    reading = asyncio.ensure_future(_read(service, topic, showing, watch=watch))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, reading.cancel)
    try:
        with suppress(asyncio.CancelledError):  # by a signal: that is how a watch ends
            await reading
    finally:
        await service.stop()


async def _read(
    service: LagService, topic: str | None, showing: AbstractContextManager[Show], *, watch: bool
) -> None:
    found = await service.read()
    with showing as show:
        while True:
            show(found if topic is None else found.of(topic))
            if not watch:
                return
            await asyncio.sleep(WATCH_INTERVAL_S)
            found = await _read_again(service)


async def _read_again(service: LagService) -> Lag:
    """The next reading, however long Kafka is away: what is shown stays meanwhile."""
    is_told = False
    while True:
        try:
            return await service.read()
        except UnavailableError as problem:
            if not is_told:
                note(f"{problem}; asked again")
            is_told = True
            await asyncio.sleep(WATCH_INTERVAL_S)


def _showing(*, as_json: bool, live: bool) -> AbstractContextManager[Show]:
    if as_json:
        return nullcontext(lambda lag: write_json(lag_json(lag)))
    if not sys.stdout.isatty():
        return nullcontext(lambda lag: write(lag_lines(lag)))
    return _live_table() if live else nullcontext(_print_table)


def _print_table(lag: Lag) -> None:
    from rich.console import Console

    Console(highlight=False).print(lag_table(lag))


@contextmanager
def _live_table() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as table:

        def show(lag: Lag) -> None:
            max_rows = max(1, console.height - NUM_OTHER_ROWS)
            table.update(lag_table(lag, max_rows=max_rows), refresh=True)

        yield show
