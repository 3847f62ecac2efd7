"""Records in: what is taken, refused, dropped and left behind, with nothing that leaks."""

import asyncio

import pytest

from headrace.schemas.request import Record
from headrace.streams.session_store import SessionRecord
from tests.unit.streams.pipeline import CONTROL, PARTITION, PLACE, Pipeline, pipeline


def tombstone(p: Pipeline, key: bytes | None, tenant: bytes | None = None) -> Record:
    """A null value."""
    offset, p.next_offset = p.next_offset, p.next_offset + 1
    headers = [] if tenant is None else [("headrace-tenant", tenant)]
    return Record("requests", PARTITION, offset, 0, key, None, headers)


async def nothing_is_left(p: Pipeline) -> None:
    """No registry entry, no queue place, no admission slot, nothing in flusher or engine."""
    await p.until(lambda: len(p.deliveries) == 0)
    assert p.engine.running == {}
    assert p.flusher.is_idle
    p.assign()
    assert await p.free_slots() == p.max_open
    await p.until(lambda: len(p.engine.running) == p.max_open)  # nobody waits for a turn


async def test_a_record_read_again_is_not_taken_twice() -> None:
    """Cases A7: after a rebalance, while it is under way; when it is finished, nothing is sent."""
    async with pipeline() as p:
        record = await p.send("r1")
        await p.started("r1")
        await p.take(record)
        assert len(p.deliveries) == 1
        await p.say("r1", "a", finish=True)
        await p.finished("r1")
        await p.take(record)
        await p.finished("r1")
        assert len(p.publisher.log) == 1
        assert p.ledger.watermarks() == {PLACE: 11}


async def test_a_slow_head_holds_the_commit_back() -> None:
    """Cases A3: others of its partition are done before it."""
    async with pipeline() as p:
        for number in range(4):
            await p.send(f"r{number}", session=f"s{number}")
        for number in (3, 1, 2):
            await p.say(f"r{number}", "x", finish=True)
            await p.finished(f"r{number}")
        assert p.ledger.watermarks() == {}
        await p.say("r0", "x", finish=True)
        await p.finished("r0")
        assert p.ledger.watermarks() == {PLACE: 14}


async def test_of_two_records_with_one_id_the_first_counts() -> None:
    """The second is committed and counted, and sends nothing."""
    async with pipeline() as p:
        await p.send("r1", "one")
        first = p.offsets["r1"]
        await p.send("r1", "two")
        await p.finished("r1")
        p.offsets["r1"] = first
        await p.say("r1", "x", finish=True)
        await p.finished("r1")
        assert len(p.publisher.log) == 1
        assert bytes(p.engine.added[0].prompt_ids) == b"one"
        assert p.metrics.registry.get_sample_value("headrace_request_duplicates_total") == 1


async def test_of_two_records_with_one_id_the_first_counts_while_redis_is_away() -> None:
    """There is no journal to tell them apart, but both are here."""
    async with pipeline() as p:
        p.redis.go_away()
        await p.send("r1", "one")
        first = p.offsets["r1"]
        await p.send("r1", "two", session="s2")
        await p.finished("r1")
        p.offsets["r1"] = first
        await p.say("r1", "x", finish=True)
        await p.finished("r1")
        assert len(p.engine.added) == 1


async def test_a_full_worker_takes_nothing_more() -> None:
    """The next record waits until one is finished; the ledger has its offset meanwhile."""
    async with pipeline(max_open=2) as p:
        await p.send("r1", session="s1")
        await p.send("r2", session="s2")
        waiting = asyncio.create_task(p.send("r3", session="s3"))
        await p.settle()
        assert not waiting.done()
        assert p.ledger.num_open == 3
        await p.say("r1", "x", finish=True)
        await waiting
        await p.started("r3")


async def test_a_partition_lost_while_a_record_waits_for_admission() -> None:
    """It is not started: its new owner does that."""
    async with pipeline(max_open=1) as p:
        await p.send("r1", session="s1")
        await p.started("r1")
        waiting = asyncio.create_task(p.send("r2", session="s2"))
        await p.settle()
        p.lose_partitions()
        await waiting
        assert len(p.engine.added) == 1
        await nothing_is_left(p)


async def test_a_partition_lost_while_the_journal_is_claimed() -> None:
    """Redis answers after the partition is gone."""
    async with pipeline() as p:
        p.redis.answering.clear()
        waiting = asyncio.create_task(p.send("r1"))
        await p.settle()
        p.lose_partitions()
        p.redis.answering.set()
        await waiting
        assert p.engine.added == []
        await nothing_is_left(p)


async def test_a_partition_lost_right_after_a_record_was_taken() -> None:
    """Its task has not run yet: what it holds is given back all the same.

    A task that is cancelled before its first step never enters its `try`, so its turn was kept for
    ever and the session stood still on this worker.
    """
    async with pipeline() as p:
        await p.send("r1")
        p.lose_partitions()
        await nothing_is_left(p)
        assert len(p.engine.added) == p.max_open


async def test_a_record_taken_again_before_its_old_task_ended_is_answered() -> None:
    """The partition went and came back at once: it is no duplicate of itself."""
    async with pipeline() as p:
        record = await p.send("r1")
        await p.started("r1")
        p.lose_partitions()
        p.assign()
        await p.take(record)
        await p.until(lambda: len(p.engine.added) == 2)
        await p.say("r1", "a", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "a"
        await p.until(lambda: len(p.deliveries) == 0)


async def test_a_tombstone_is_dropped_with_its_partition() -> None:
    """The new owner deletes; its turn here is given back."""
    async with pipeline() as p:
        await p.send("r1")
        await p.started("r1")
        await p.take(tombstone(p, b"s1"))
        p.lose_partitions()
        await nothing_is_left(p)
        assert ("delete", "s1") not in p.calls


@pytest.mark.parametrize("num_steps", range(0, 40))
async def test_a_partition_lost_at_any_moment_leaves_nothing_behind(num_steps: int) -> None:
    """Two turns of a session and a tombstone, cancelled after so many turns of the loop."""

    async def send(p: Pipeline) -> None:
        await p.send("r1", "one")
        await p.send("r2", "two")
        await p.take(tombstone(p, b"s1"))

    async with pipeline() as p:
        sending = asyncio.create_task(send(p))
        for step in range(num_steps):
            await asyncio.sleep(0)
            key = "r1" in p.offsets and p.key("r1")
            if key and step % 3 == 0:
                p.engine.say(key, "x")
        p.lose_partitions()
        p.assign()
        await sending
        p.lose_partitions()
        await nothing_is_left(p)


@pytest.mark.parametrize("num_steps", range(0, 30, 3))
async def test_a_partition_lost_while_redis_does_not_answer_leaves_nothing_behind(
    num_steps: int,
) -> None:
    """What the flusher had in its hands when the partition went must not come back into its list.

    It did: another owner's text was tried again every 50 ms, for ever.
    """
    async with pipeline() as p:
        await p.send("r1")
        key = await p.started("r1")
        p.redis.answering.clear()
        p.engine.say(key, "ab")
        for _ in range(num_steps):
            await asyncio.sleep(0)
        p.lose_partitions()
        p.redis.go_away()
        p.redis.answering.set()
        await p.until(lambda: len(p.deliveries) == 0)
        await p.settle()
        assert p.flusher.is_idle
        p.redis.come_back()
        await nothing_is_left(p)


async def test_a_record_does_not_wait_for_the_claim_of_the_one_before() -> None:
    """64 requests that came together were claimed one round trip after another."""
    async with pipeline() as p:
        p.redis.answering.clear()
        names = [f"r{number}" for number in range(4)]
        async with asyncio.timeout(1):
            for name in names:
                await p.send(name, session=name)
        p.redis.answering.set()
        for name in names:
            await p.started(name)
        assert names == [about for what, about in p.calls if what == "claim"]


async def test_of_two_records_with_one_id_the_first_counts_while_its_claim_is_asked() -> None:
    """The second is read before Redis has answered for the first."""
    async with pipeline() as p:
        p.redis.answering.clear()
        await p.send("r1", "first")
        await p.send("r1", "second")
        p.redis.answering.set()
        await p.changes.until(lambda: p.engine.added)
        await p.settle()
        assert [list(b"first")] == [one.prompt_ids for one in p.engine.added]
        assert p.metrics.registry.get_sample_value("headrace_request_duplicates_total") == 1


async def test_a_drain_that_begins_while_a_record_is_claimed_does_not_start_it() -> None:
    """The engine may be stopped already; the record is the next owner's.

    It was started: EngineStoppedError ended the worker in the middle of its drain.
    """
    async with pipeline() as p:
        p.redis.answering.clear()
        taking = asyncio.create_task(p.send("r1"))
        await p.settle()
        p.intake.close()
        p.deliveries.drop_waiting()
        p.redis.answering.set()
        await taking
        await p.settle()
        assert p.engine.added == []
        assert p.is_open("r1")


async def test_a_closed_intake_takes_nothing() -> None:
    """What was not taken is not committed either."""
    async with pipeline() as p:
        p.intake.close()
        await p.send("r1")
        p.control(action="delete_session", session_id="s1")
        assert p.ledger.num_open == 0
        assert p.ledger.watermarks() == {}


async def test_a_drain_does_not_wait_for_redis_to_delete_a_session() -> None:
    """Redis is away: tombstone, cancel and deletion are left to the next owner.

    Their tasks waited for Redis for ever, so the process never ended.
    """
    async with asyncio.timeout(5), pipeline() as p:
        p.redis.go_away()
        await p.take(tombstone(p, b"s1"))
        p.control(offset=0, action="delete_session", session_id="s1")
        p.control(offset=1, action="cancel", request_id="r1", session_id="s1")
        await p.settle()
        p.intake.close()
        await p.settle()
        chores = [
            t.get_name() for t in asyncio.all_tasks() if t.get_name()[:7] in ("delete ", "control")
        ]
        assert chores == []
        assert p.ledger.num_open == 3


async def test_records_during_an_outage_do_not_wait_for_redis_one_after_another() -> None:
    """Once it is known to be away, nobody asks it again before it is back."""
    async with pipeline() as p:
        p.redis.available.clear()
        p.redis.answering.clear()  # a call would hang
        for number in range(5):
            async with asyncio.timeout(1):
                await p.send(f"r{number}", session=f"s{number}")


async def test_a_tombstone_deletes_in_order_with_the_requests() -> None:
    """Cases C1: behind the turn before it, ahead of the one after it."""
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.take(tombstone(p, b"s1"))
        await p.send("r2", "two")
        await p.say("r1", "1", finish=True)
        await p.say("r2", "2", finish=True)
        await p.finished("r2")
        assert p.calls.index(("store", "r1")) < p.calls.index(("delete", "s1"))
        assert bytes(p.engine.added[1].prompt_ids) == b"two"
        assert p.ledger.watermarks() == {PLACE: 13}


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
async def test_a_tombstone_without_a_usable_key_is_ignored_and_counted(key: bytes | None) -> None:
    """Cases C1: the offset advances."""
    async with pipeline() as p:
        await p.take(tombstone(p, key))
        assert p.ledger.watermarks() == {PLACE: 11}
        labels = {"topic": "requests"}
        found = p.metrics.registry.get_sample_value("headrace_records_ignored_total", labels)
        assert found == 1


async def test_a_tombstone_deletes_in_its_tenants_name() -> None:
    """The header says whose session it is."""
    async with pipeline() as p:
        p.sessions.records["acme", "s1"] = SessionRecord(ids=[1])
        p.sessions.records["default", "s1"] = SessionRecord(ids=[1])
        await p.take(tombstone(p, b"s1", b"acme"))
        await p.until(lambda: p.ledger.num_open == 0)
        existing = [key for key, record in p.sessions.records.items() if record.exists]
        assert existing == [("default", "s1")]


async def test_an_empty_value_is_undecodable_not_a_tombstone() -> None:
    """Cases C1: it goes to the dead-letter topic and ends with `failed`."""
    async with pipeline() as p:
        record = Record("requests", PARTITION, 10, 0, b"s1", b"", [])
        p.next_offset = 11
        await p.take(record)
        await p.until(lambda: p.ledger.num_open == 0)
        assert p.publisher.dead == [(record, "invalid_json", 1)]
        assert p.publisher.log[0]["error"]["code"] == "invalid_json"
        assert p.publisher.log[0]["id"] == "requests-3-10"


async def test_a_session_is_deleted_as_soon_as_the_control_record_is_read() -> None:
    """It does not wait for the turn that runs, which is not stored then."""
    async with pipeline() as p:
        await p.send("r1")
        await p.started("r1")
        p.control(action="delete_session", session_id="s1")
        await p.changes.until(lambda: ("delete", "s1") in p.calls)
        await p.say("r1", "a", finish=True)
        await p.finished("r1")
        assert not p.sessions.records["default", "s1"].exists
        assert p.ledger.watermarks()[CONTROL] == 1


async def test_a_broken_control_record_is_ignored_and_counted() -> None:
    """The offset advances."""
    async with pipeline() as p:
        p.control(action="dance", session_id="s1")
        assert p.ledger.watermarks() == {CONTROL: 1}
        labels = {"topic": "control"}
        found = p.metrics.registry.get_sample_value("headrace_records_ignored_total", labels)
        assert found == 1


async def test_a_cancel_is_committed_once_it_is_written() -> None:
    """Redis is away: it waits, and is not lost."""
    async with pipeline() as p:
        p.redis.go_away()
        p.control(action="cancel", request_id="r9", session_id="s1")
        await p.settle()
        assert p.ledger.is_open(CONTROL, 0)
        p.redis.come_back()
        await p.until(lambda: not p.ledger.is_open(CONTROL, 0))
        assert p.journal.early == {("default", "r9", "s1")}


async def test_an_early_cancel_ends_the_request_when_it_comes() -> None:
    """Cases B3: read before its request; zero tokens."""
    async with pipeline() as p:
        p.control(action="cancel", request_id="r1", session_id="s1")
        await p.until(lambda: not p.ledger.is_open(CONTROL, 0))
        await p.send("r1")
        await p.finished("r1")
        assert p.engine.added == []
        last = p.publisher.log[0]
        assert last["choices"][0]["finish_reason"] == "cancelled"
        assert last["usage"]["completion_tokens"] == 0


async def test_a_cancel_read_right_after_its_request_is_not_missed() -> None:
    """The delivery's task has not run yet, and its claim was answered before the cancel."""
    async with pipeline() as p:
        await p.send("r1")
        p.control(action="cancel", request_id="r1", session_id="s1")
        await p.finished("r1")
        assert p.publisher.log[0]["choices"][0]["finish_reason"] == "cancelled"


async def test_a_duplicate_is_known_also_when_its_journal_is_lost() -> None:
    """It was answered again, under the same attempt: the same numbers had two contents."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab", finish=True)
        await p.finished("r1")
        p.journal.forget_everything()
        await p.send("r1", "something else")
        await p.finished("r1")
        assert p.text("r1") == "ab"
        assert len(p.engine.added) == 1
