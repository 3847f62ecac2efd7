"""What a rebalance takes and gives, and what is committed, with a group that the test plays."""

import time
from collections.abc import Mapping

import pytest
from aiokafka.errors import KafkaConnectionError

from headrace.schemas.topics import Topics
from headrace.streams.group import GroupMember
from headrace.streams.ledger import Place, Watermark
from tests.unit.streams.pipeline import PARTITION, PLACE, Pipeline, member_of, pipeline

TOPICS = Topics("t")
REQUESTS, CONTROL = Place(TOPICS.requests, 3), Place(TOPICS.control, 3)


class PlayedGroup:
    """The consumer thread of an app: answers with what the test put there."""

    def __init__(self) -> None:
        self.ends: dict[Place, int] = {}
        self.begins: dict[Place, Watermark] = {}
        self.problem: Exception | None = None
        self.accepting = True
        self.commits: list[dict[Place, Watermark]] = []

    @property
    def consumer_thread(self) -> "PlayedGroup":
        return self

    async def end_offsets(self, places: list[Place]) -> dict[Place, int]:
        if self.problem is not None:
            raise self.problem
        return {place: self.ends.get(place, 0) for place in places}

    async def begin_watermarks(self, places: list[Place]) -> dict[Place, Watermark]:
        if self.problem is not None:
            raise self.problem
        return {place: self.begins.get(place, Watermark(0)) for place in places}

    async def commit_watermarks(self, watermarks: Mapping[Place, Watermark]) -> set[Place]:
        if self.problem is not None:
            raise self.problem
        if not self.accepting:
            return set()
        self.commits.append(dict(watermarks))
        self.begins |= watermarks
        return set(watermarks)


def member(p: Pipeline, group: PlayedGroup, topics: Topics = TOPICS) -> GroupMember:
    """A member with the parts of `p`."""
    return member_of(p, group, topics)


async def test_an_assignment_takes_a_token_for_each_request_partition() -> None:
    """own; control partitions have no tokens."""
    async with pipeline() as p:
        group = PlayedGroup()
        group.ends = {REQUESTS: 17}
        await member(p, group).on_assigned(None, [REQUESTS, CONTROL])
        assignment = p.ownership.get(3)
        assert assignment is not None
        assert (assignment.token, assignment.end_offset) == (p.journal.fences[3], 17)


async def test_a_partition_that_stays_gets_a_larger_token() -> None:
    """This process may have been out of the group in between."""
    async with pipeline() as p:
        group = PlayedGroup()
        one = member(p, group)
        tokens = []
        for _ in range(3):
            await one.on_assigned(None, [REQUESTS])
            assignment = p.ownership.get(3)
            assert assignment is not None
            tokens.append(assignment.token)
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("redis_is_away", [True, False])
async def test_a_token_is_larger_even_if_the_clock_went_back(
    monkeypatch: pytest.MonkeyPatch, redis_is_away: bool
) -> None:
    """And Redis is away, or was emptied."""
    async with pipeline() as p:
        one = member(p, PlayedGroup())
        await one.on_assigned(None, [REQUESTS])
        before = p.ownership.get(3)
        p.journal.forget_everything()
        p.redis.away = redis_is_away
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        await one.on_assigned(None, [REQUESTS])
        after = p.ownership.get(3)
        assert before is not None
        assert after is not None
        assert after.token > before.token


async def test_redis_away_at_an_assignment_costs_no_partition() -> None:
    """The clock alone."""
    async with pipeline() as p:
        p.redis.go_away()
        began_ms = int(time.time() * 1000)
        await member(p, PlayedGroup()).on_assigned(None, [REQUESTS])
        assignment = p.ownership.get(3)
        assert assignment is not None
        assert assignment.token >= began_ms


async def test_unknown_end_offsets_leave_nothing_fresh() -> None:
    """Kafka gave no answer: every record counts as one that another may have started."""
    async with pipeline() as p:
        group = PlayedGroup()
        group.problem = KafkaConnectionError("away")
        await member(p, group).on_assigned(None, [REQUESTS])
        assignment = p.ownership.get(3)
        assert assignment is not None
        assert assignment.end_offset is None


async def test_a_rebalance_suspends_the_lease_until_the_new_assignment() -> None:
    """What is ours is not known in between."""
    async with pipeline() as p:
        one = member(p, PlayedGroup())
        now_s = time.monotonic()
        await one.on_revoked(None, [REQUESTS])
        assert not p.lease.held(now_s)
        await one.on_assigned(None, [REQUESTS])
        assert p.lease.held(now_s)


async def test_what_is_lost_stops_and_what_stays_goes_on() -> None:
    """The rows of a partition that stays are not touched by a rebalance."""
    async with pipeline() as p:
        group = PlayedGroup()
        topics = Topics("x")
        one = member(p, group, topics)
        await p.send("r1")
        await p.started("r1")
        await one.on_assigned(None, [PLACE])
        await p.settle()
        assert p.key("r1") is not None
        await one.on_assigned(None, [Place(topics.requests, 7)])
        await p.until(lambda: len(p.deliveries) == 0)
        assert p.key("r1") is None
        assert p.ledger.num_open == 0


async def test_a_refused_commit_is_tried_again() -> None:
    """It is not noted as committed."""
    async with pipeline() as p:
        group = PlayedGroup()
        group.begins = {REQUESTS: Watermark(4)}
        one = member(p, group)
        await one.on_assigned(None, [REQUESTS])
        p.ledger.take(REQUESTS, 4, 0.0)
        p.ledger.finish(REQUESTS, 4)
        group.accepting = False
        assert not await one.commit()
        group.accepting = True
        assert await one.commit()
        assert await one.commit()
        assert [{place: mark.offset for place, mark in one.items()} for one in group.commits] == [
            {REQUESTS: 5}
        ]


async def test_tokens_grow_although_redis_was_emptied_and_the_next_owners_clock_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A smaller attempt would not be read by anybody: the group's offsets carry the token along."""
    group = PlayedGroup()
    async with pipeline() as p:
        one = member(p, group)
        await one.on_assigned(None, [REQUESTS, CONTROL])
        first = p.ownership.get(3)
        assert await one.commit()
        assert await one.commit()
        assert len(group.commits) == 1, "once for each token"
    async with pipeline() as p:
        p.ownership.keep_only([])
        p.journal.forget_everything()
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        await member(p, group).on_assigned(None, [REQUESTS])
        second = p.ownership.get(3)
    assert first is not None
    assert second is not None
    assert second.token > first.token


async def test_what_is_finished_is_committed_before_the_group_gives_it_to_another() -> None:
    """Case A9: it would be read there once more."""
    async with pipeline() as p:
        group = PlayedGroup()
        one = member(p, group)
        await one.on_assigned(None, [REQUESTS])
        p.ledger.take(REQUESTS, 0, 0.0)
        p.ledger.finish(REQUESTS, 0)
        await one.on_revoked(None, [REQUESTS])
        assert group.begins[REQUESTS].offset == 1


async def test_text_is_journaled_before_the_group_gives_it_to_another() -> None:
    """So the next owner goes on from there, and computes none of it again."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "a")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        await p.say("r1", "b")
        await member(p, PlayedGroup()).on_revoked(None, [REQUESTS])
        await p.settle()
        assert p.journal.of("r1").entry.ids == list(b"ab")


async def test_nothing_is_committed_before_the_first_assignment() -> None:
    """There is no member to commit for."""
    async with pipeline() as p:
        group = PlayedGroup()
        p.ledger.take(Place(TOPICS.requests, PARTITION), 4, 0.0)
        p.ledger.finish(Place(TOPICS.requests, PARTITION), 4)
        assert await member(p, group).commit()
        assert group.commits == []
