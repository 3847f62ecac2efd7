"""`headrace tail`: follow response events, of one session or of all."""

import asyncio
import signal
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

import typer

from headrace.consumers.kafka_reader import bounded, find_partitions, reading
from headrace.consumers.log_event import LogEvent, decode_event
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import ReplyText, failure_text, statistics, write, write_json
from headrace.producers.outgoing import TopicMissingError
from headrace.schemas.errors import UnavailableError
from headrace.schemas.reply import ReplyReader, Seen, is_last
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.settings import Settings

MAX_FOLLOWED = 10_000
"""Requests whose place is remembered; the oldest is forgotten first (200 bytes each)."""

FETCH_BYTES = 2**20


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace tail",
        "headrace tail --session s1 --from-start",
        "headrace tail --json | jq .usage",
    )
)
@with_settings(*KAFKA, errors_only=True)
def tail(
    settings: Settings,
    session: Annotated[str | None, typer.Option(help="This conversation only.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose conversations.")] = DEFAULT_TENANT,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the oldest event that is kept.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line.")] = False,
) -> int:
    """Follow response events until Ctrl-C. Events that readers drop (repeats) are not shown."""
    asyncio.run(_tail(settings, tenant, session, from_start=from_start, as_json=as_json))
    return 0


async def _tail(
    settings: Settings, tenant: str, session: str | None, *, from_start: bool, as_json: bool
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    shown = _Shown(as_json=as_json)

    async def follow() -> None:
        source = (
            _all_events(settings, tenant, from_start=from_start)
            if session is None
            else _session_events(settings, tenant, session, from_start=from_start)
        )
        async with aclosing(source) as events:
            async for found in events:
                shown.show(found.event)

    following = asyncio.ensure_future(follow())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        following.cancel()
        await asyncio.wait({following})
        shown.end()
    if following.cancelled():
        return
    following.result()


async def _session_events(
    settings: Settings, tenant: str, session: str, *, from_start: bool
) -> AsyncGenerator[LogEvent, None]:
    async with _connected(settings):
        pass  # says at once what is not there; the log would try again and again
    log = ResponseLog(settings)
    await log.start()
    try:
        async with log.follow(tenant=tenant, session_id=session, from_start=from_start) as events:
            async for found in events:
                yield found
    finally:
        await log.stop()


async def _all_events(
    settings: Settings, tenant: str, *, from_start: bool
) -> AsyncGenerator[LogEvent, None]:
    async with _assigned(settings, from_start=from_start) as consumer:
        async for record in consumer:
            found = decode_event(record)
            if found is not None and found.tenant == tenant:
                yield found


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[tuple[Any, list[Any]]]:
    topic = settings.topics.responses
    async with reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        try:
            parts = await find_partitions(consumer, topic)
        except UnavailableError as problem:
            what = f"topic {topic} at {settings.kafka}"
            raise TopicMissingError(what, problem.timeout_s) from problem
        yield consumer, parts


@asynccontextmanager
async def _assigned(settings: Settings, *, from_start: bool) -> AsyncIterator[Any]:
    async with _connected(settings) as (consumer, parts):
        consumer.assign(parts)
        seek = consumer.seek_to_beginning if from_start else consumer.seek_to_end
        await bounded("offsets", seek(*parts))
        yield consumer


class _Shown:
    """Prints events of many requests that come interleaved, each once."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._readers: OrderedDict[tuple[str, str], ReplyReader] = OrderedDict()
        self._current: tuple[str, str] | None = None
        self._text = ReplyText()

    def show(self, event: dict[str, Any]) -> None:
        """Print `event` unless readers drop it."""
        request = (event["session_id"], event["id"])
        seen = self._reader_of(request, event).see(event)
        if seen is Seen.OLD:
            return
        if self._as_json:
            write_json(event)
            return
        if request != self._current:
            self._text.end_line()
            write(f"── {request[0]} {request[1]}\n")
            self._current = request
        self._text.show(event, restarted=seen is Seen.RESTART)
        if is_last(event):
            self._text.end_line()
            write(f"   {failure_text(event) or statistics(event)}\n")
            self._current = None

    def end(self) -> None:
        """Finish the line that stands on stdout."""
        self._text.end_line()

    def _reader_of(self, request: tuple[str, str], event: dict[str, Any]) -> ReplyReader:
        if request not in self._readers:  # we may have come in the middle of it
            number = event["sequence_number"]
            self._readers[request] = ReplyReader(starting_after=number - 1 if number else None)
            if len(self._readers) > MAX_FOLLOWED:
                self._readers.popitem(last=False)
        self._readers.move_to_end(request)
        return self._readers[request]
