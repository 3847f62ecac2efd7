"""What schedules found, each brought down to the part that it was in."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from headrace.schemas.topics import Topics
from headrace.streams.journal import FlushResult
from headrace.streams.ledger import AckLedger, Place, Watermark
from tests.unit.streams.pipeline import PARTITION, member_of, pipeline

PLACE = Place("requests", 0)


def test_a_finished_record_is_not_taken_again_before_its_commit() -> None:
    """A rebalance reads from the committed offset on. Were the journal lost meanwhile, the record
    would be answered again, in other chunks, under the same attempt.
    """
    ledger = AckLedger()
    ledger.begin(PLACE, 0)
    assert ledger.take(PLACE, 0, 0.0)
    ledger.finish(PLACE, 0)
    assert not ledger.take(PLACE, 0, 0.0)


def test_records_behind_one_that_was_given_back_wait_for_it() -> None:
    """They may be the next turns of its session; all are read again."""
    ledger = AckLedger()
    ledger.begin(PLACE, 0)
    ledger.take(PLACE, 0, 0.0)
    ledger.give_back(PLACE, 0)
    assert not ledger.take(PLACE, 1, 0.0)
    assert [ledger.take(PLACE, offset, 0.0) for offset in (0, 1)] == [True, True]


async def test_what_is_held_while_the_flusher_is_idle_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """confirm found no journal, and the one that replaces it got no answer: nobody else touches
    the generation, so its offset would never be committed.
    """
    async with pipeline() as p:
        adopt, answers = p.journal.adopt, [FlushResult.AWAY]

        async def away_once(*args: Any, **options: Any) -> FlushResult:
            return answers.pop() if answers else await adopt(*args, **options)

        monkeypatch.setattr(p.journal, "adopt", away_once)
        p.publisher.acknowledging = False
        await p.send("r1")
        await p.say("r1", "hello", finish=True)
        await p.changes.until(lambda: "last" in p.calls.of("r1"))
        await p.until(lambda: p.flusher.is_idle)
        p.journal.forget_everything()
        p.publisher.acknowledge()
        p.publisher.acknowledging = True
        await p.finished("r1")
        assert not answers


async def test_an_answer_without_a_journal_shares_its_attempt_with_nobody() -> None:
    """Redis was away when it was given, so a second record with its id may be answered, too."""
    async with pipeline() as p:
        p.redis.go_away()
        await p.send("r1")
        await p.say("r1", "hello", finish=True)
        await p.finished("r1")
        p.redis.come_back()
        await p.send("r1", "again")
        await p.settle()
        if p.key("r1") is not None:
            await p.say("r1", "another", finish=True)
            await p.finished("r1")
        contents = defaultdict(set)
        for event in p.publisher.of("r1"):
            text = event["choices"][0]["delta"]["content"]
            contents[event["attempt"], event["sequence_number"]].add(text)
        assert {1} == {len(texts) for texts in contents.values()}


class SlowGroup:
    """The consumer thread of an app whose committed offsets take their time."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.commits: list[dict[Place, Watermark]] = []

    @property
    def consumer_thread(self) -> "SlowGroup":
        return self

    async def end_offsets(self, places: list[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 7)

    async def begin_watermarks(self, places: list[Place]) -> dict[Place, Watermark]:
        await self.answering.wait()
        return {place: Watermark(5, 2**42) for place in places}

    async def commit_watermarks(self, watermarks: dict[Place, Watermark]) -> set[Place]:
        self.commits.append(dict(watermarks))
        return set(watermarks)


async def test_nothing_is_committed_before_the_group_said_where_it_goes_on() -> None:
    """A worker that was away and comes back has offsets and a token of before; another owner may
    have got further. The group would take them: the assignment is the new one.
    """
    async with pipeline() as p:
        group, topics = SlowGroup(), Topics("t")
        requests = Place(topics.requests, PARTITION)
        p.ledger.begin(requests, 0)
        p.ledger.take(requests, 0, 0.0)
        p.ledger.finish(requests, 0)
        member = member_of(p, group, topics)
        assigning = asyncio.create_task(member.on_assigned(None, [requests]))
        await p.settle()
        committing = asyncio.create_task(member.commit())
        await p.settle()
        group.answering.set()
        await asyncio.gather(assigning, committing)
        await member.commit()
        for commit in group.commits:
            assert commit[requests].offset >= 5
            assert commit[requests].token > 2**42
