"""`headrace dlq list`, `show` and `retry`: what could not be answered, and asking it once more."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from heapq import heappush, heappushpop
from typing import Annotated

import typer

from headrace.consumers.dlq_reader import DlqReader, reading_dlq
from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import write, write_json
from headrace.deploy.console import fail, note
from headrace.deploy.counted import Counted
from headrace.deploy.dead_letter_text import LetterSummary, page, page_json, printable, table
from headrace.producers.request_producer import ProduceError, RequestProducer
from headrace.schemas.dead_letter import DeadLetter, DlqPlace, NotRetriableError, Retry
from headrace.schemas.settings import Settings

DEFAULT_LIMIT = 100
MAX_LIMIT = 100_000
"""Summaries that a list keeps at once, some 500 bytes each."""

_SPAN = re.compile("([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

app = typer.Typer(
    help="Look at requests that could not be answered, and ask them again.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("headrace dlq list", "headrace dlq show 3-17", "headrace dlq retry 3-17"),
)


def _place(text: str) -> DlqPlace:
    found = DlqPlace.parse(text)
    if found is None:
        raise typer.BadParameter(
            f"{printable(text)!r} is no place: write partition-offset, as 3-17"
        )
    return found


def _ago(text: str) -> int:
    """Milliseconds of the epoch, `text` ago."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{printable(text)!r} is no span of time: write 90s, 30m, 1h or 7d"
        )
    span_ms = int(found[1]) * _SECONDS[found[2]] * 1000
    return max(0, time.time_ns() // 1_000_000 - span_ms)


Place = Annotated[
    DlqPlace, typer.Argument(parser=_place, metavar="PLACE", help="partition-offset, as 3-17.")
]
Places = Annotated[
    list[DlqPlace] | None,
    typer.Argument(parser=_place, metavar="[PLACE]...", help="partition-offset, as 3-17."),
]
Reason = Annotated[str | None, typer.Option(help="Those with this reason only.")]
Since = Annotated[
    int | None,
    typer.Option(parser=_ago, metavar="SPAN", help="Not older than this: 90s, 30m, 1h, 7d."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


@app.command(
    "list",
    epilog=examples(
        "headrace dlq list",
        "headrace dlq list --since 1h --reason internal_error",
        "headrace dlq list --json | jq -r .place",
    ),
)
@with_settings(*KAFKA, errors_only=True)
def list_(
    settings: Settings,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_LIMIT, help="The newest so many.")
    ] = DEFAULT_LIMIT,
    reason: Reason = None,
    since: Since = None,
    as_json: Json = False,
) -> int:
    """Show the dead letters, the oldest first."""
    found, num_found = asyncio.run(_newest(settings, limit, reason, since))
    if as_json:
        for summary in found:
            write_json(summary.as_json())
    elif found:
        write(table(found))
    if not found:
        note("there are no dead letters" + (" like these" if reason or since else ""))
    elif num_found > len(found):
        note(f"{num_found - len(found)} older ones are not shown (--limit)")
    return 0


async def _newest(
    settings: Settings, limit: int, reason: str | None, since: int | None
) -> tuple[list[LetterSummary], int]:
    """The newest `limit` of them, the oldest first, and how many there are."""
    heap: list[tuple[int, DlqPlace, LetterSummary]] = []  # a place is there once
    num_found = 0
    async with reading_dlq(settings) as reader, aclosing(_wanted(reader, reason, since)) as letters:
        async for letter in letters:
            num_found += 1
            item = (letter.record.timestamp_ms, letter.place, LetterSummary.of(letter))
            if len(heap) < limit:
                heappush(heap, item)
            else:
                heappushpop(heap, item)
    return [summary for _, _, summary in sorted(heap, key=lambda item: item[:2])], num_found


async def _wanted(
    reader: DlqReader, reason: str | None, since: int | None
) -> AsyncGenerator[DeadLetter, None]:
    async with aclosing(reader.letters(since_ms=since)) as letters:
        async for letter in letters:
            if reason in (None, letter.reason):
                yield letter


@app.command(epilog=examples("headrace dlq show 3-17", "headrace dlq show 3-17 --json | jq .value"))
@with_settings(*KAFKA, errors_only=True)
def show(settings: Settings, place: Place, as_json: Json = False) -> int:
    """Show one dead letter: why it is there, its headers and its value."""

    async def read() -> DeadLetter:
        async with reading_dlq(settings) as reader:
            return await reader.letter_at(place)

    letter = asyncio.run(read())
    if as_json:
        write_json(page_json(letter))
    else:
        write(page(letter))
    return 0


@app.command(
    epilog=examples(
        "headrace dlq retry 3-17 4-0",
        "headrace dlq retry --all --reason internal_error --since 1h --dry-run",
        "headrace dlq retry --all --yes",
    )
)
@with_settings(*KAFKA, "max_request_bytes", errors_only=True)
def retry(
    settings: Settings,
    places: Places = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    reason: Reason = None,
    since: Since = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> int:
    """Ask dead letters again: same bytes, key and headers, under a new id, which is printed.

    The id follows from the place, so a letter that is retried twice is answered once.
    """
    if everything == bool(places):
        raise typer.BadParameter("name places or say --all, one of the two")
    if places and (reason or since):
        raise typer.BadParameter("--reason and --since choose among --all")
    chosen = sorted(set(places or ()))
    retrying = _Retrying(settings, dry_run=dry_run, as_json=as_json)
    return asyncio.run(
        retrying.run_places(chosen) if chosen else retrying.run_all(reason, since, ask=not yes)
    )


class _Retrying:
    """Produces letters again, by partition and offset, and says what became of each."""

    def __init__(self, settings: Settings, *, dry_run: bool, as_json: bool) -> None:
        self._settings, self._dry_run, self._as_json = settings, dry_run, as_json
        self._producer = RequestProducer(settings, source="headrace/cli")
        self._num_done = self._num_refused = 0

    async def run_places(self, places: list[DlqPlace]) -> int:
        """Nothing is produced unless each place holds a letter that can be retried."""
        async with reading_dlq(self._settings) as reader:
            for place in places:
                self._retry_of(await reader.letter_at(place))

            async def letters() -> AsyncGenerator[DeadLetter, None]:
                for place in places:
                    yield await reader.letter_at(place)

            return await self._run(letters(), len(places))

    async def run_all(self, reason: str | None, since: int | None, *, ask: bool) -> int:
        """Those that cannot be retried are named and left out."""
        async with reading_dlq(self._settings) as reader:
            num_letters = 0
            async with aclosing(_wanted(reader, reason, since)) as letters:
                async for _ in letters:
                    num_letters += 1
            if not num_letters:
                note("there are no dead letters" + (" like these" if reason or since else ""))
                return 0
            if ask and not self._dry_run and sys.stdin.isatty():
                typer.confirm(f"Ask {_counted(num_letters)} again?", abort=True, err=True)
            return await self._run(_wanted(reader, reason, since), num_letters)

    async def _run(self, letters: AsyncGenerator[DeadLetter, None], num_letters: int) -> int:
        try:
            if not self._dry_run:
                await self._producer.start()
            async with aclosing(letters):
                with Counted("asking again", num_letters) as progress:
                    async for letter in letters:
                        await self._take(letter)
                        progress.advance()
        finally:
            await self._producer.stop()
        if self._dry_run:
            note(f"{_counted(self._num_done)} would be asked again; nothing was done")
        if self._num_refused:
            fail(f"{_counted(self._num_refused)} could not be asked again")
        return 1 if self._num_refused else 0

    async def _take(self, letter: DeadLetter) -> None:
        try:
            retry = self._retry_of(letter)
            written = None if self._dry_run else await self._producer.resubmit(retry)
        except NotRetriableError as problem:
            self._refuse(str(problem))
        except ProduceError as problem:
            self._refuse(f"{letter.place}: {problem}")
        else:
            self._num_done += 1
            self._say(letter.place, retry, written)

    def _retry_of(self, letter: DeadLetter) -> Retry:
        return letter.retry(self._settings.topics.requests)

    def _refuse(self, text: str) -> None:
        self._num_refused += 1
        fail(printable(text))

    def _say(self, place: DlqPlace, retry: Retry, written: tuple[int, int] | None) -> None:
        if self._as_json:
            partition, offset = written or (None, None)
            write_json(
                {
                    "place": str(place),
                    "request_id": retry.old_id,
                    "new_request_id": retry.request_id,
                    "partition": partition,
                    "offset": offset,
                }
            )
        else:
            write(f"{place}  {printable(retry.old_id)} -> {printable(retry.request_id)}\n")


def _counted(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
