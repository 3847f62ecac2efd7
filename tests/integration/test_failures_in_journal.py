"""What a journal tells the next owner of the one before it, on a real Redis."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from headrace.schemas.keys import Keys
from headrace.schemas.request import DecodedRequest, Record, decode_request
from headrace.streams.generation import Ending, Generation, JournalEntry, Start
from headrace.streams.journal import ClaimKind, Journal
from headrace.streams.redis_scripts import Scripts, connect
from headrace.streams.roster import Roster
from tests.fakes import ByteStream

pytestmark = pytest.mark.integration

START = Start([1, 2, 3], -5, 2, 1, 1_796_000_000, "tiny", "fp-1")


class Worker:
    """The Redis side of one worker."""

    def __init__(self, scripts: Scripts, keys: Keys, name: str, *, signs_for_s: float) -> None:
        self.journal = Journal(scripts, keys, ttl_s=60, worker_id=name)
        self.roster = Roster(scripts, keys, name, signs_for_s=signs_for_s, keep_s=60)

    async def claim(self, token: int) -> tuple[Generation, JournalEntry]:
        """Take the request over, and what stood there."""
        claim = await self.journal.claim(decoded(), token=token, may_create=True)
        assert claim.kind in (ClaimKind.CREATED, ClaimKind.RESUMED)
        assert claim.entry is not None
        generation = Generation(decoded(), token=token, attempt=claim.entry.attempt)
        generation.restore(claim.entry, ByteStream())
        generation.start = generation.start or START
        return generation, claim.entry

    async def flush(self, generation: Generation, text: str) -> None:
        generation.extend(list(text.encode()), text)
        pending = generation.next_flush()
        assert pending is not None
        await self.journal.flush([(generation, pending)])
        generation.flushed(pending)


def decoded() -> DecodedRequest:
    value = orjson.dumps({"request_id": "r1", "prompt": "hi"})
    return decode_request(Record("requests", 3, 5, 1_796_000_000_000, b"s1", value, []))


@asynccontextmanager
async def workers(
    redis_url: str, prefix: str, *, signs_for_s: float = 5.0
) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two of one pipeline."""
    client, keys = connect(redis_url), Keys(prefix)
    scripts = Scripts(client, keys)
    try:
        first, second = (
            Worker(scripts, keys, name, signs_for_s=signs_for_s) for name in ("w1", "w2")
        )
        yield first, second
    finally:
        await client.aclose()


def told(entry: JournalEntry) -> tuple[str, int, int, bool]:
    return entry.runner, entry.num_ids_claimed, entry.failures, entry.alone


async def test_a_claim_tells_who_had_it_and_where_that_one_began(
    redis_url: str, topic_prefix: str
) -> None:
    """So the next owner sees whether it got on there."""
    async with workers(redis_url, topic_prefix) as (first, second):
        generation, entry = await first.claim(100)
        assert told(entry) == ("", 0, 0, False)
        await first.flush(generation, "ab")
        generation, entry = await second.claim(200)
        assert told(entry) == ("w1", 0, 0, False)
        await second.flush(generation, "cde")
        _, entry = await first.claim(300)
        assert told(entry) == ("w2", 2, 0, False)
        assert len(entry.ids) == 5


async def test_failures_stay_and_the_mark_of_one_that_runs_alone_goes_with_the_next_claim(
    redis_url: str, topic_prefix: str
) -> None:
    """The mark is about one owner, the count about the request. A fenced owner writes nothing."""
    async with workers(redis_url, topic_prefix) as (first, second):
        generation, _ = await first.claim(100)
        await first.journal.note_failures(generation, 2, alone=True)
        taken_over, entry = await second.claim(200)
        assert told(entry) == ("w1", 0, 2, True)
        await first.journal.note_failures(generation, 3, alone=True)
        assert told((await second.claim(201))[1]) == ("w2", 0, 2, False)
        await second.journal.adopt(
            taken_over, JournalEntry(300, START, [1, 2, 3]), may_create=True
        )  # of no effect: 201 stands there
        taken_over.token = taken_over.attempt = 301
        await second.journal.adopt(taken_over, JournalEntry(301, START, [1, 2, 3]), may_create=True)
        assert told((await first.claim(400))[1]) == ("w2", 3, 2, False)


async def test_a_journal_that_is_done_keeps_nothing_of_it(
    redis_url: str, topic_prefix: str
) -> None:
    """10,000 of them must stay small."""
    async with workers(redis_url, topic_prefix) as (first, second):
        generation, _ = await first.claim(100)
        await first.journal.note_failures(generation, 1, alone=False)
        generation.end(Ending("stop"))
        await first.flush(generation, "ab")
        await first.journal.confirm(generation)
        assert told((await second.claim(200))[1]) == ("", 0, 0, False)
        assert told((await second.claim(201))[1]) == ("", 0, 0, False)


async def test_a_worker_is_gone_when_its_signs_of_life_stop_but_not_when_it_left_in_order(
    redis_url: str, topic_prefix: str
) -> None:
    """And at once when it says that it has failed."""
    async with workers(redis_url, topic_prefix, signs_for_s=0.3) as (first, second):
        assert await second.roster.is_gone("w1")
        await first.roster.leave()
        assert not await second.roster.is_gone("w1")
        await first.roster.sign_off()
        assert await second.roster.is_gone("w1")
        await first.roster.sign_on()
        while not await second.roster.is_gone("w1"):
            pass
        assert not await first.roster.is_gone("w1"), "it is this one"
