"""Rules of the protocol to leave out of the real code, to see that schedules find it.

The names are those of `tests/spec/delivery_model.py` where it has them.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from headrace.schemas.request import Record
from headrace.streams import lua
from headrace.streams.generation import Flush, Generation, JournalEntry
from headrace.streams.journal import FlushResult, Journal
from headrace.streams.ledger import AckLedger, Place
from headrace.streams.ownership import Lease, Ownership
from tests.explorer.clients import SimProducer

Bug = Callable[[], AbstractContextManager[None]]
BUGS: dict[str, Bug] = {}


def _bug(name: str) -> Callable[[Bug], Bug]:
    def keep(plant: Bug) -> Bug:
        BUGS[name] = plant
        return plant

    return keep


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _without(script: str, part: str, instead: str) -> AbstractContextManager[None]:
    """A script in which one part stands for another."""
    text = getattr(lua, script)
    assert part in text, f"{script} has no {part!r} any more"
    return _instead(lua, script, text.replace(part, instead))


@_bug("commit before publish")
def commit_before_publish() -> AbstractContextManager[None]:
    """What is handed to the producer counts as acknowledged (acks=0)."""
    send = SimProducer.send

    async def send_and_forget(self: SimProducer, *args: Any, **options: Any) -> Any:
        future = await send(self, *args, **options)
        if not future.done():
            future.set_result(None)
        return future

    return _instead(SimProducer, "send", send_and_forget)


@_bug("publish before journal")
def publish_before_journal() -> AbstractContextManager[None]:
    """A flush is taken for written as soon as it is sent."""
    flush = Journal.flush
    sent: set[asyncio.Task[Any]] = set()

    async def flush_later(
        self: Journal, flushes: Sequence[tuple[Generation, Flush]]
    ) -> list[FlushResult]:
        task = asyncio.ensure_future(flush(self, flushes))
        sent.add(task)
        task.add_done_callback(sent.discard)
        await asyncio.sleep(0)
        return [FlushResult.OK] * len(flushes)

    return _instead(Journal, "flush", flush_later)


@_bug("publish while journal is away")
def publish_while_away() -> AbstractContextManager[None]:
    """A flush without an answer is taken for written."""
    flush = Journal.flush

    async def flush_or_not(
        self: Journal, flushes: Sequence[tuple[Generation, Flush]]
    ) -> list[FlushResult]:
        results = await flush(self, flushes)
        return [FlushResult.OK if one is FlushResult.AWAY else one for one in results]

    return _instead(Journal, "flush", flush_or_not)


@_bug("no fence")
def no_fence() -> AbstractContextManager[None]:
    """Whoever flushes is believed."""
    fence = "if tonumber(old[1]) > tonumber(ARGV[1]) then return 'fenced' end"
    return _without("FLUSH", fence, "")


@_bug("confirm without a fence")
def confirm_without_fence() -> AbstractContextManager[None]:
    """Whoever confirms is believed."""
    fence = "if tonumber(token) > tonumber(ARGV[1]) then return 'fenced' end"
    return _without("CONFIRM", fence, "")


@_bug("no lease")
def no_lease() -> AbstractContextManager[None]:
    """A worker believes that it is still counted in."""
    return _instead(Lease, "held", lambda self, now_s: True)


@_bug("acks out of order")
def acks_out_of_order() -> AbstractContextManager[None]:
    """The highest finished offset is committed."""
    highest: dict[tuple[int, Place], int] = {}
    finish, watermarks = AckLedger.finish, AckLedger.watermarks

    def finish_and_note(self: AckLedger, place: Place, offset: int) -> None:
        finish(self, place, offset)
        key = (id(self), place)
        highest[key] = max(highest.get(key, 0), offset + 1)

    def highest_finished(self: AckLedger) -> dict[Place, int]:
        due = watermarks(self)
        for place in due:
            due[place] = max(due[place], highest.get((id(self), place), 0))
        return due

    @contextmanager
    def both() -> Iterator[None]:
        with (
            _instead(AckLedger, "finish", finish_and_note),
            _instead(AckLedger, "watermarks", highest_finished),
        ):
            yield

    return both()


@_bug("recreate journal with the old attempt")
def old_attempt() -> AbstractContextManager[None]:
    """A lost journal is written again, and the chunks are cut anew, under the same attempt."""
    restart = Generation.restart

    def restart_as_before(self: Generation, token: int) -> JournalEntry:
        attempt = self.attempt
        restart(self, token)
        self.attempt = attempt
        return self._whole_entry()

    return _instead(Generation, "restart", restart_as_before)


@_bug("keep the attempt of a journal in which nothing began")
def empty_attempt() -> AbstractContextManager[None]:
    """A claim takes it over as it is."""
    return _without("CLAIM", "if not (found[3] or found[4] or found[5]) then", "if false then")


@_bug("unjournaled although it may have been started")
def not_fresh() -> AbstractContextManager[None]:
    """Every record counts as come after the assignment."""

    def came_since(self: Ownership, record: Record) -> bool:
        return self.owns(record.partition)

    return _instead(Ownership, "came_since", came_since)


@_bug("session stored without a fence")
def session_without_fence() -> AbstractContextManager[None]:
    """Neither token nor version is asked for."""

    @contextmanager
    def both() -> Iterator[None]:
        fence = "if found[2] == ARGV[2] and tonumber(found[1]) > tonumber(ARGV[1])"
        with (
            _without("STORE_SESSION", fence, "if false"),
            _without("STORE_SESSION", "if (found[3] or '0') ~= ARGV[3]", "if false"),
        ):
            yield

    return both()
