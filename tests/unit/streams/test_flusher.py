"""Journal before publish: what is written, held back and shown for any answer of the journal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import orjson
import pytest

from headrace.schemas.request import Record, decode_request
from headrace.streams.flusher import (
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    Flusher,
    flush_interval_s,
)
from headrace.streams.generation import Ending, Flush, Generation, JournalEntry, Standing
from headrace.streams.journal import FlushResult
from tests.unit.streams.pipeline import MemoryJournal, Pipeline, pipeline


def running(p: Pipeline, request_id: str = "r1") -> Generation:
    """A generation whose journal is claimed, outside of any delivery."""
    record = p.record(request_id)
    assignment = p.ownership.get(record.partition)
    assert assignment is not None
    token = assignment.token
    return Generation(decode_request(record), token=token, attempt=token)


async def claimed(p: Pipeline, request_id: str = "r1") -> Generation:
    generation = running(p, request_id)
    await p.journal.claim(generation.decoded, token=generation.token, may_create=True)
    return generation


def make(p: Pipeline, generation: Generation, text: str) -> None:
    """The engine made text for it."""
    generation.extend(list(text.encode()), text)
    p.flusher.touch(generation)


def flusher_of(
    p: Pipeline,
    *,
    journal: MemoryJournal | None = None,
    on_cancel: Callable[[Generation], None] = lambda _: None,
    on_fenced: Callable[[Generation], None] = lambda _: None,
    interval_s: Callable[[int], float] = flush_interval_s,
) -> Flusher:
    """One over the parts of a pipeline, beside its own."""
    return Flusher(
        journal or p.journal,
        p.redis,
        p.publisher,
        p.ownership,
        p.lease,
        on_cancel=on_cancel,
        on_fenced=on_fenced,
        interval_s=interval_s,
    )


async def test_nothing_is_published_before_the_journal_has_answered() -> None:
    """However long that takes, and whatever the engine makes meanwhile."""
    async with pipeline() as p:
        generation = await claimed(p)
        p.redis.answering.clear()
        make(p, generation, "ab")
        await p.settle()
        make(p, generation, "cd")
        await p.settle()
        assert p.publisher.log == []
        p.redis.answering.set()
        await p.until(lambda: p.text("r1") == "abcd")
        assert p.calls.of("r1")[1:] == ["flush", "publish", "flush", "publish"]


async def test_one_away_answer_holds_one_generation_back() -> None:
    """Redis refused one of the calls of a round trip; the others are shown."""

    class RefusingJournal(MemoryJournal):
        refusing = True

        async def flush(self, flushes: Sequence[tuple[Generation, Flush]]) -> list[FlushResult]:
            results = []
            for generation, flush in flushes:
                if self.refusing and generation.decoded.request_id == "r1":
                    results.append(FlushResult.AWAY)
                else:
                    results += await super().flush([(generation, flush)])
            return results

    async with pipeline() as p:
        journal = RefusingJournal(p.redis, p.calls)
        flusher = flusher_of(p, journal=journal)
        generations = [running(p, name) for name in ("r1", "r2")]
        for generation in generations:
            await journal.claim(generation.decoded, token=generation.token, may_create=True)
            generation.extend([97], "a")
            flusher.touch(generation)
        await flusher.tick()
        assert (p.text("r1"), p.text("r2")) == ("", "a")
        assert not flusher.is_idle
        journal.refusing = False
        await flusher.tick()
        assert p.text("r1") == "a"
        assert flusher.is_idle


async def test_a_fenced_generation_is_reported_and_not_published() -> None:
    """Another owner has it."""
    async with pipeline() as p:
        fenced: list[Generation] = []
        flusher = flusher_of(p, on_fenced=fenced.append)
        generation = await claimed(p)
        p.journal.of("r1").token += 1
        generation.extend([97], "a")
        flusher.touch(generation)
        await flusher.tick()
        assert fenced == [generation]
        assert p.publisher.log == []
        assert flusher.is_idle


async def test_a_forgotten_generation_is_not_published_by_the_round_that_had_it() -> None:
    """Its delivery was dropped while Redis did not answer."""
    async with pipeline() as p:
        generation = await claimed(p)
        p.redis.answering.clear()
        make(p, generation, "ab")
        await p.settle()
        p.flusher.forget(generation)
        p.redis.go_away()
        p.redis.answering.set()
        await p.settle()
        assert p.flusher.is_idle


async def test_a_forgotten_generation_does_not_come_back_with_the_partition() -> None:
    """Unjournaled, dropped, and the partition is ours again: the old one must not adopt it.

    It was adopted under its old attempt, which readers ignore.
    """
    async with pipeline() as p:
        p.redis.go_away()
        generation = running(p)
        generation.standing = Standing.UNJOURNALED
        make(p, generation, "ab")
        await p.settle()
        assert p.text("r1") == "ab"
        p.flusher.forget(generation)
        p.ownership.keep_only([])
        await asyncio.sleep(0.12)  # two retries
        p.assign()
        p.redis.come_back()
        await asyncio.sleep(0.12)  # two retries
        assert p.journal.stored == {}


async def test_a_cancelled_caller_does_not_take_the_others_text_with_it() -> None:
    """A delivery that asks for a round of its own is dropped in the middle of it.

    The round was cut off between taking and publishing: what it held for others was never shown.
    """
    async with pipeline() as p:
        other = await claimed(p, "r2")
        p.redis.go_away()
        await p.send("r1", session="s9")
        p.publisher.acknowledging = False
        await p.say("r1", "ab", finish=True)
        await p.changes.until(lambda: ("last", "r1") in p.calls)
        make(p, other, "text of r2")  # held back
        await p.settle()
        p.journal.answers_after_confirm = False
        p.publisher.acknowledging = True
        p.redis.come_back()
        p.publisher.acknowledge()  # confirm finds no journal: unjournaled, it must be adopted first
        await p.changes.until(lambda: ("confirm", "r1") in p.calls)
        await p.settle()
        p.lose_partitions()
        await p.settle()
        p.redis.answering.set()
        await p.until(lambda: p.text("r2") == "text of r2")


async def test_a_cancel_that_stands_in_the_journal_is_reported_until_it_has_ended() -> None:
    """Each flush says so; after the end nothing is reported."""
    async with pipeline() as p:
        cancelled: list[Generation] = []
        flusher = flusher_of(p, on_cancel=cancelled.append)
        generation = await claimed(p)
        await p.journal.cancel(tenant="default", request_id="r1", session_id="s1")
        generation.extend([97], "a")
        flusher.touch(generation)
        await flusher.tick()
        assert cancelled == [generation]


@pytest.mark.parametrize("leased", [True, False])
async def test_a_lost_journal_is_written_anew_under_the_lease_only(leased: bool) -> None:
    """The larger attempt holds all text so far in one chunk."""
    async with pipeline() as p:
        generation = await claimed(p)
        make(p, generation, "ab")
        await p.until(lambda: p.text("r1") == "ab")
        if not leased:
            p.lease.suspend()
        p.journal.forget_everything()
        make(p, generation, "cd")
        await asyncio.sleep(0.12)  # two retries
        bounds = [len(one.entry.bounds) for one in p.journal.stored.values()]
        assert bounds == ([1] if leased else [])
        assert (p.text("r1") == "ab") is not leased


async def test_a_partition_that_was_lost_makes_no_new_attempt() -> None:
    """The lease is held, but this partition is another's."""
    async with pipeline() as p:
        generation = await claimed(p)
        p.journal.forget_everything()
        p.assign(PARTITION_OF_ANOTHER_SESSION)
        make(p, generation, "ab")
        await asyncio.sleep(0.12)  # two retries
        assert p.journal.stored == {}
        assert p.publisher.log == []


PARTITION_OF_ANOTHER_SESSION = 5


async def test_what_redis_loses_while_it_is_away_is_a_larger_attempt() -> None:
    """Held back first, then told that the journal is gone."""
    async with pipeline() as p:
        generation = await claimed(p)
        make(p, generation, "ab")
        await p.until(lambda: p.text("r1") == "ab")
        p.redis.go_away()
        make(p, generation, "cd")
        await p.settle()
        p.journal.forget_everything()
        p.redis.come_back()
        await p.until(lambda: p.text("r1") == "ababcd")
        attempts = [event["attempt"] for event in p.publisher.log]
        assert attempts[0] < attempts[1]


async def test_what_comes_after_an_unanswered_adopt_is_held_back() -> None:
    """The journal may stand, and the next owner would go on from what it holds.

    Text was published behind it under the lease: after a crash the same numbers had two contents.
    """

    class UnansweredJournal(MemoryJournal):
        answers = False

        async def adopt(
            self, generation: Generation, entry: JournalEntry, *, may_create: bool
        ) -> FlushResult:
            result = await super().adopt(generation, entry, may_create=may_create)
            if self.answers:
                return result
            p.redis.go_away()
            return FlushResult.AWAY

    async with pipeline() as p:
        journal = UnansweredJournal(p.redis, p.calls)
        flusher = flusher_of(p, journal=journal)
        generation = running(p)
        generation.standing = Standing.UNJOURNALED
        p.redis.go_away()
        for text, back in (("a", False), ("b", True), ("c", False)):
            generation.extend(list(text.encode()), text)
            flusher.touch(generation)
            if back:
                p.redis.come_back()
            await flusher.tick()
        assert p.text("r1") == "a"
        assert bytes(journal.of("r1").entry.ids) == b"ab"
        p.redis.come_back()
        journal.answers = True
        await flusher.tick()
        assert p.text("r1") == "abc"
        assert bytes(journal.of("r1").entry.ids) == b"abc"
        assert [event["attempt"] for event in p.publisher.log] == [generation.attempt] * 3
        assert generation.standing is Standing.JOURNALED


async def test_an_unjournaled_answer_waits_for_redis_after_another_assignment() -> None:
    """This process may have been expelled and taken back: readers may follow another's attempt.

    It went on under its own, which they ignore, and committed the request at its end.
    """
    async with pipeline() as p:
        p.redis.go_away()
        generation = running(p)
        generation.standing = Standing.UNJOURNALED
        make(p, generation, "ab")
        await p.until(lambda: p.text("r1") == "ab")
        p.assign(end_offset=p.next_offset)
        make(p, generation, "cd")
        await asyncio.sleep(0.12)  # two retries
        assert p.text("r1") == "ab"
        p.redis.come_back()
        await p.until(lambda: p.text("r1") == "ababcd")
        attempts = [event["attempt"] for event in p.publisher.log]
        assert attempts[0] < attempts[1] == p.journal.of("r1").entry.attempt


async def test_a_new_owner_publishes_what_was_not_acknowledged() -> None:
    """Touched with nothing new: only what was journaled before goes out."""
    async with pipeline() as p:
        generation = await claimed(p)
        generation.extend([97], "a")
        flush = generation.next_flush()
        assert flush is not None
        await p.journal.flush([(generation, flush)])
        generation.flushed(flush)
        p.flusher.touch(generation)
        await p.until(lambda: p.text("r1") == "a")
        p.flusher.touch(generation)
        await p.settle()
        assert p.text("r1") == "a"


@asynccontextmanager
async def gathering(p: Pipeline) -> AsyncIterator[Flusher]:
    """A flusher whose second round does not come during the test."""
    flusher = flusher_of(p, interval_s=lambda num_generations: 1e6)
    flushing = asyncio.create_task(flusher.run())
    try:
        await flusher.tick()  # the first round
        yield flusher
    finally:
        flushing.cancel()
        await asyncio.wait([flushing])


async def test_a_first_chunk_does_not_wait_for_the_round() -> None:
    """What follows it does: a chunk costs the same for one token as for ten."""
    async with pipeline() as p, gathering(p) as flusher:
        generation = await claimed(p)
        for text in ("ab", "cd", "ef"):
            generation.extend(list(text.encode()), text)
            flusher.touch(generation)
            await p.settle()
        assert p.text("r1") == "ab"
        await flusher.tick()
        assert p.text("r1") == "abcdef"
        assert len(p.publisher.log) == 2


async def test_an_ending_does_not_wait_for_the_round() -> None:
    """It takes along what was gathered, and leaves what others gathered."""
    async with pipeline() as p, gathering(p) as flusher:
        generations = [await claimed(p, name) for name in ("r1", "r2")]
        for text in ("ab", "cd"):
            for generation in generations:
                generation.extend(list(text.encode()), text)
                flusher.touch(generation)
            await p.settle()
        generations[0].end(Ending(finish_reason="stop"))
        flusher.touch(generations[0])
        await p.settle()
        assert (p.text("r1"), p.text("r2")) == ("abcd", "ab")
        assert not flusher.is_idle


async def test_what_an_earlier_owner_journaled_does_not_wait_for_the_round() -> None:
    """A reader has been waiting for it since that owner died."""
    async with pipeline() as p, gathering(p) as flusher:
        generation = await claimed(p)
        generation.extend([97], "a")
        flush = generation.next_flush()
        assert flush is not None
        generation.flushed(flush)
        flusher.touch(generation)
        await p.settle()
        assert p.text("r1") == "a"


async def test_one_round_flushes_what_all_have_gathered() -> None:
    """In one call of the journal."""
    async with pipeline() as p, gathering(p) as flusher:
        generations = [await claimed(p, name) for name in ("r1", "r2", "r3")]
        for text in ("ab", "cd"):
            for generation in generations:
                generation.extend(list(text.encode()), text)
                flusher.touch(generation)
            await p.settle()
        await flusher.tick()
        assert flusher.is_idle
        assert [what for what, _ in p.calls[-6:]] == ["flush"] * 3 + ["publish"] * 3


def test_the_interval_grows_with_the_streams_and_is_bounded() -> None:
    """Short for a few, and never so long that a reader sees it."""
    intervals = [flush_interval_s(number) for number in range(200)]
    assert intervals == sorted(intervals)
    assert intervals[0] == MIN_INTERVAL_S
    assert intervals[-1] == MAX_INTERVAL_S


def test_records_of_these_tests_are_requests() -> None:
    """The helper's records decode, so nothing here tests refusals by accident."""
    record = Record("requests", 3, 1, 0, b"s1", orjson.dumps({"prompt": "hi"}), [])
    assert decode_request(record).error is None
