"""The life of one request in a worker: journaled, published, stored and committed, in order."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import orjson
import pytest

from headrace.models.engine import EngineStoppedError
from headrace.models.request import EngineError, EngineErrorCode
from headrace.schemas.request import Record, decode_request
from headrace.streams.admission import THREAD_ABOVE_BYTES
from headrace.streams.generation import Ending, Generation, JournalEntry, Start
from headrace.streams.journal import ConfirmResult
from headrace.streams.session_store import SessionRecord
from tests.fakes import ByteStream
from tests.unit.streams.pipeline import BROKEN_TEXT, PARTITION, PLACE, Pipeline, pipeline


def start(prompt: str = "hi") -> Start:
    """What an earlier owner settled."""
    return Start(list(prompt.encode()), 1, 0, 0, 5, "tiny", "fp-1")


async def left_by_another(p: Pipeline, request_id: str, entry: JournalEntry) -> Record:
    """A record whose journal an earlier owner wrote; not taken yet."""
    record = p.record(request_id)
    await p.journal.claim(decode_request(record), token=1, may_create=True)
    p.journal.of(request_id).entry = entry
    return record


async def test_an_answer_goes_its_way_in_order() -> None:
    """claim, flush, publish, store, confirm: each text is journaled before it is published."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        await p.say("r1", "c", finish=True)
        await p.finished("r1")
        expected = ["claim", "flush", "publish", "flush", "last", "store", "confirm"]
        assert expected == p.calls.of("r1")
        assert p.text("r1") == "abc"
        assert p.ledger.watermarks() == {PLACE: 11}


async def test_a_record_that_was_delivered_is_only_committed() -> None:
    """Cases A9: the next owner sends nothing."""
    async with pipeline() as p:
        record = await left_by_another(p, "r1", JournalEntry(attempt=1, done=True))
        await p.take(record)
        await p.finished("r1")
        assert (p.publisher.log, p.engine.added) == ([], [])


async def test_a_half_done_answer_goes_on_in_mid_sentence() -> None:
    """Unconfirmed chunks are published again, the rest comes under the same attempt."""
    async with pipeline() as p:
        entry = JournalEntry(7, start(), list(b"abc"), [1, 3], confirmed=1)
        await p.take(await left_by_another(p, "r1", entry))
        await p.say("r1", "d", finish=True)
        await p.finished("r1")
        numbers = [(e["attempt"], e["sequence_number"]) for e in p.publisher.log]
        assert numbers == [(7, 1), (7, 2)]
        assert p.text("r1") == "bcd"
        assert p.engine.added[0].generated_ids == list(b"abc")


async def test_a_turn_starts_after_the_one_before_it_is_finished() -> None:
    """Cases B4, B5: also after its last event, until it is stored and confirmed."""
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.send("r2", "two")
        await p.send("r3", "else", session="s2")
        await p.say("r3", "x", finish=True)
        await p.finished("r3")
        assert p.key("r2") is None
        await p.say("r1", "first", finish=True)
        await p.say("r2", "second", finish=True)
        await p.finished("r2")
        added = p.calls.index(("add", p.engine.added[2].key))
        assert p.calls.index(("confirm", "r1")) < added
        assert bytes(p.engine.added[2].prompt_ids) == b"onefirsttwo"
        assert p.sessions.records["default", "s1"].turns == 2


async def test_a_cancel_of_a_turn_that_waits_is_answered_at_once() -> None:
    """Its place is kept: the next turn still waits for both, and sees the question."""
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.send("r2", "two")
        await p.send("r3", "three")
        p.control(action="cancel", request_id="r2", session_id="s1")
        await p.changes.until(lambda: ("last", "r2") in p.calls)
        assert p.publisher.of("r2")[0]["choices"][0]["finish_reason"] == "cancelled"
        assert p.is_open("r2")
        await p.settle()
        assert p.key("r3") is None
        await p.say("r1", "1", finish=True)
        await p.say("r3", "3", finish=True)
        await p.finished("r3")
        assert bytes(p.engine.added[-1].prompt_ids) == b"one1twothree"


async def test_a_cancel_of_a_running_turn_keeps_what_was_sent() -> None:
    """Contract §2: question and sent text stay, what a stop string held back too."""
    async with pipeline() as p:
        await p.send("r1", "one", stop=["END"])
        await p.say("r1", "the E")
        p.control(action="cancel", request_id="r1", session_id="s1")
        await p.finished("r1")
        assert p.text("r1") == "the E"
        messages = p.sessions.records["default", "s1"].messages
        assert [message["content"] for message in messages] == ["one", "the E"]


@pytest.mark.parametrize(
    "named",
    [
        {"request_id": "r1", "session_id": "other"},
        {"request_id": "r2", "session_id": "s1"},
        {"request_id": "r1", "session_id": "s1", "tenant": "other"},
    ],
)
async def test_a_cancel_that_names_something_else_has_no_effect(named: dict[str, Any]) -> None:
    """Another session, another id, another tenant."""
    async with pipeline() as p:
        await p.send("r1")
        await p.started("r1")
        p.control(action="cancel", **named)
        await p.settle()
        await p.say("r1", "a", finish=True)
        await p.finished("r1")
        assert p.publisher.log[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_cancel_found_by_the_claim_ends_it_without_the_engine() -> None:
    """Early, or from the time of an earlier owner: its text stays, held back parts too."""
    async with pipeline() as p:
        record = p.record("r1", stop=["END"])
        await p.journal.claim(decode_request(record), token=1, may_create=True)
        p.journal.of("r1").entry = JournalEntry(
            1, start(), list(b"the E"), [2], confirmed=1, cancelled=True
        )
        await p.take(record)
        await p.finished("r1")
        assert p.text("r1") == "e E"
        assert p.engine.added == []


async def test_a_request_expires_while_it_waits_for_its_turn() -> None:
    """ttl_ms counts from the record's timestamp; it is answered at once, and keeps its place."""
    async with pipeline() as p:
        await p.send("r1")
        await p.started("r1")
        await p.send("r2", ttl_ms=30)
        await p.changes.until(lambda: ("last", "r2") in p.calls)
        assert p.publisher.of("r2")[0]["error"]["code"] == "expired"
        assert p.is_open("r2")
        await p.say("r1", "x", finish=True)
        await p.finished("r2")


async def test_a_request_that_is_too_old_is_not_started() -> None:
    """It lay in the backlog for longer than its ttl_ms."""
    async with pipeline() as p:
        record = replace(p.record("r1", ttl_ms=1000), timestamp_ms=int(time.time() * 1000) - 2000)
        await p.take(record)
        await p.finished("r1")
        assert p.publisher.log[0]["error"]["code"] == "expired"
        assert p.engine.added == []


async def test_a_request_that_was_started_does_not_expire() -> None:
    """Its next owner goes on with it however old it is."""
    async with pipeline() as p:
        record = replace(p.record("r1", ttl_ms=1), timestamp_ms=0)
        await p.journal.claim(decode_request(record), token=1, may_create=True)
        p.journal.of("r1").entry = JournalEntry(1, start(), [97], [1], confirmed=1)
        await p.take(record)
        await p.say("r1", "b", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "b"


async def test_a_refused_request_does_not_touch_its_neighbours() -> None:
    """The turn behind it in its session goes on as if it had not been."""
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.send("r2", model="unknown")
        await p.send("r3", "three")
        await p.say("r1", "1", finish=True)
        await p.say("r3", "3", finish=True)
        await p.finished("r3")
        assert p.publisher.of("r2")[0]["error"]["code"] == "model_not_found"
        assert bytes(p.engine.added[-1].prompt_ids) == b"one1three"
        assert p.publisher.dead == []


async def test_a_schema_that_cannot_be_followed_is_refused_alone() -> None:
    """It never reaches the engine; the turn behind it goes on."""
    async with pipeline() as p:
        bad = {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}
        await p.send("r1", response_format=bad)
        await p.send("r2", "two", response_format={"type": "json_object"})
        await p.say("r2", "{}", finish=True)
        await p.finished("r2")
        error = p.publisher.of("r1")[0]["error"]
        assert error["code"] == "invalid_value"
        assert error["param"] == "response_format.json_schema.schema"
        assert error["message"] == "this schema cannot be followed: Invalid type: thing"
        assert [request.grammar is not None for request in p.engine.added] == [True]
        assert p.publisher.dead == []


async def test_the_next_owner_holds_an_answer_to_its_form_too() -> None:
    """The journal has the tokens, the request has the schema."""
    async with pipeline() as p:
        record = p.record("r1", response_format={"type": "json_object"})
        await p.journal.claim(decode_request(record), token=1, may_create=True)
        p.journal.of("r1").entry = JournalEntry(7, start(), list(b'{"'), [2])
        await p.take(record)
        await p.say("r1", 'a":1}', finish=True)
        await p.finished("r1")
        (request,) = p.engine.added
        assert (request.grammar is not None, bytes(request.generated_ids)) == (True, b'{"')


async def test_an_exception_in_preparation_fails_that_request_only() -> None:
    """Contract §5: internal_error and the dead-letter topic; the worker goes on."""
    async with pipeline() as p:
        broken = await p.send("r1", BROKEN_TEXT)
        await p.send("r2", "two")
        await p.say("r2", "x", finish=True)
        await p.finished("r1")
        await p.finished("r2")
        assert p.publisher.of("r1")[0]["error"]["code"] == "internal_error"
        assert [record for record, _, _ in p.publisher.dead] == [broken]


async def test_a_cancelled_request_that_breaks_preparation_does_not_end_the_worker() -> None:
    """Its question cannot be put into the conversation: it is left out, its neighbours go on.

    The exception ended the worker, and the next one that claimed it, for ever.
    """
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.send("r2", BROKEN_TEXT)
        p.control(action="cancel", request_id="r2", session_id="s1")
        await p.changes.until(lambda: ("last", "r2") in p.calls)
        await p.say("r1", "1", finish=True)
        await p.send("r3", "three")
        await p.say("r3", "3", finish=True)
        await p.finished("r3")
        assert not p.is_open("r2")


async def test_a_cancel_while_the_prompt_is_made_gives_every_owner_the_same_last_event() -> None:
    """Its end was journaled without prompt and seed, and then published with them."""
    async with pipeline() as p:
        p.publisher.acknowledging = False
        record = p.record("r1")
        long = replace(record, value=(record.value or b"") + b" " * THREAD_ABOVE_BYTES)
        p.encoder.may_encode.clear()
        await p.take(long)
        await p.settle()
        p.redis.answering.clear()
        p.deliveries.cancel(tenant="default", request_id="r1", session_id="s1")
        await p.settle()  # the flush of its end is on its way
        p.encoder.may_encode.set()
        await p.until(lambda: p.encoder.num_encoded)
        await p.settle()
        p.redis.answering.set()
        await p.changes.until(lambda: ("last", "r1") in p.calls)
        entry = p.journal.of("r1").entry
        next_owners = Generation(decode_request(long), token=10**15, attempt=entry.attempt)
        next_owners.restore(entry, ByteStream())
        (again,) = next_owners.take_publishable()
        (shown,) = p.publisher.log
        assert orjson.loads(again.value) == shown
        p.publisher.acknowledging = True
        p.publisher.acknowledge()
        await p.finished("r1")


async def test_after_an_unanswered_claim_the_next_owner_starts_a_larger_attempt() -> None:
    """Redis went away with the answer, so it was answered without a journal, in part.

    The next owner found the claimed journal, and went on under its attempt: readers ignored it.
    """
    async with pipeline() as p:
        record = p.record("r1")
        assignment = p.ownership.get(PARTITION)
        assert assignment is not None
        await p.journal.claim(decode_request(record), token=assignment.token, may_create=True)
        p.redis.go_away()
        await p.take(record)
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.lose_partitions()  # it ends without a word to Redis
        await p.until(lambda: len(p.deliveries) == 0)
        p.redis.come_back()
        p.assign()
        await p.take(record)
        await p.say("r1", "ab", finish=True)
        await p.finished("r1")
        attempts = [event["attempt"] for event in p.publisher.log]
        assert attempts == sorted(set(attempts)), "a larger one, so that readers follow it"


async def test_an_owner_that_begins_anew_draws_the_same_seed() -> None:
    """Nothing of a journal is left, and the request names no seed: still the same text."""
    async with pipeline() as p:
        records = [p.record(name, seed=None, session=name) for name in ("r1", "r2")]
        for record in records:
            await p.take(record)
        for name in ("r1", "r2"):
            await p.started(name)
        p.lose_partitions()
        await p.until(lambda: len(p.deliveries) == 0)
        p.journal.forget_everything()
        p.assign()
        await p.take(records[0])
        await p.until(lambda: len(p.engine.added) == 3)
        first, second, anew = (request.sampling.seed for request in p.engine.added)
        assert anew == first != second


async def test_a_turn_that_was_stored_before_the_crash_does_not_end_the_worker() -> None:
    """The session counts this turn already, so its `turn` does not fit any more.

    conversation_after raised session_out_of_sync, which ended every worker that claimed it.
    """
    async with pipeline() as p:
        record = p.record("r1", turn=0)
        await p.journal.claim(decode_request(record), token=1, may_create=True)
        p.journal.of("r1").entry = JournalEntry(
            1, start(), list(b"ab"), [2], ending=Ending(finish_reason="stop")
        )
        stored = SessionRecord(1, 1, [{"role": "user", "content": "hi"}], list(b"hiab"))
        p.sessions.records["default", "s1"] = stored
        p.sessions.last["default", "s1"] = "r1"
        await p.take(record)
        await p.finished("r1")
        assert p.text("r1") == "ab"
        assert p.sessions.records["default", "s1"] == stored


async def test_a_turn_of_a_session_that_was_deleted_meanwhile_does_not_end_the_worker() -> None:
    """Resumed after a crash, with a `turn` that the deleted session does not have."""
    async with pipeline() as p:
        record = p.record("r1", turn=3)
        await p.journal.claim(decode_request(record), token=1, may_create=True)
        p.journal.of("r1").entry = JournalEntry(1, start(), [97], [1])
        p.sessions.records["default", "s1"] = SessionRecord(version=5)
        await p.take(record)
        await p.say("r1", "b", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "ab"
        assert not p.sessions.records["default", "s1"].exists


async def test_an_engine_error_ends_the_text_with_a_failed_event() -> None:
    """What was made before is shown; the conversation keeps nothing of it."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        key = await p.started("r1")
        p.engine.fail(key, EngineError(EngineErrorCode.OUT_OF_MEMORY, "no room", is_refusal=True))
        await p.finished("r1")
        assert p.text("r1") == "ab"
        assert p.publisher.log[-1]["error"]["code"] == "out_of_memory"
        assert p.sessions.records == {}
        assert p.publisher.dead == []


async def test_a_stopped_engine_is_not_the_requests_fault() -> None:
    """A drain, or a dead engine: nothing is published or committed, and the next owner takes it."""
    async with pipeline() as p:
        p.engine.problem = EngineStoppedError()
        await p.send("r1")
        await p.until(lambda: len(p.deliveries) == 0)
        assert p.publisher.log == []
        assert p.ledger.watermarks() == {}


async def test_a_fenced_worker_publishes_nothing_more() -> None:
    """The partition is another's; this worker has not heard of it and its lease is over."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.journal.of("r1").token += 1000
        p.lease.lost()
        await p.say("r1", "cd")
        await p.until(lambda: p.key("r1") is None)
        await p.settle()
        assert p.text("r1") == "ab"
        assert ("own", "") not in p.calls, "a zombie must not fence the owner off"
        p.lose_partitions()
        await p.until(lambda: len(p.deliveries) == 0)
        assert p.flusher.is_idle


async def test_a_fenced_owner_takes_a_new_token_and_goes_on() -> None:
    """What the other got done is taken over; nothing is shown twice."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        stored = p.journal.of("r1")
        attempt = stored.entry.attempt
        stored.token += 1000
        p.journal.fences[PARTITION] = stored.token
        stored.entry = replace(stored.entry, ids=list(b"abc"), bounds=[2, 3], confirmed=1)
        await p.say("r1", "zz")
        await p.until(lambda: len(p.engine.added) == 2)
        await p.say("r1", "d", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "abcd"
        assert {event["attempt"] for event in p.publisher.log} == {attempt}


async def test_a_lost_journal_means_a_larger_attempt_with_all_text_so_far() -> None:
    """Redis was emptied in mid-sentence: nothing is computed again."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.journal.forget_everything()
        await p.say("r1", "cd")
        await p.changes.until(lambda: "adopt" in p.calls.of("r1"))
        await p.settle()
        await p.say("r1", "e", finish=True)
        await p.finished("r1")
        first, second = sorted({event["attempt"] for event in p.publisher.log})
        assert first < second
        events = [e for e in p.publisher.log if e["attempt"] == second]
        assert [e["sequence_number"] for e in events] == [0, 1]
        texts = [e["choices"][0]["delta"]["content"] for e in events]
        assert texts == ["abcd", "e"]
        assert len(p.engine.added) == 1


async def test_a_larger_attempt_is_larger_even_if_clock_and_fence_went_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis was emptied and the clock set back: readers ignore an attempt that is not larger."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.journal.forget_everything()
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        await p.say("r1", "cd", finish=True)
        await p.finished("r1")
        attempts = [event["attempt"] for event in p.publisher.log]
        assert attempts == sorted(attempts)
        assert len(set(attempts)) == 2


async def test_a_journal_lost_before_confirm_is_published_again() -> None:
    """All is acknowledged, then Redis is emptied: a reader may follow a larger attempt already."""
    async with pipeline() as p:
        p.publisher.acknowledging = False
        await p.send("r1")
        await p.say("r1", "ab", finish=True)
        await p.changes.until(lambda: ("last", "r1") in p.calls)
        p.journal.forget_everything()
        p.publisher.acknowledging = True
        p.publisher.acknowledge()
        await p.finished("r1")
        first, second = [(e["attempt"], e["sequence_number"]) for e in p.publisher.log]
        assert first[0] < second[0]
        assert second[1] == 0
        assert p.journal.of("r1").entry.done


async def test_without_the_lease_a_lost_journal_holds_the_text_back() -> None:
    """Until the group has answered again; then the larger attempt."""
    async with pipeline() as p:
        await p.send("r1")
        await p.started("r1")
        p.journal.forget_everything()
        p.lease.suspend()
        await p.say("r1", "ab", finish=True)
        await p.settle()
        assert p.publisher.log == []
        assert p.journal.stored == {}
        p.lease.resume()
        await p.finished("r1")
        assert p.text("r1") == "ab"


async def test_a_record_without_a_journal_waits_for_the_lease() -> None:
    """A zombie must not start an attempt."""
    async with pipeline() as p:
        p.lease.suspend()
        await p.send("r1")
        await p.settle()
        assert p.journal.stored == {}
        p.lease.resume()
        await p.say("r1", "a", finish=True)
        await p.finished("r1")


async def test_a_turn_claimed_under_an_older_token_is_stored_behind_a_newer_one() -> None:
    """Only the journal of the turn before it was evicted: that one was stored under a new token.

    The turn was refused as an owner of before, so the conversation lost it.
    """
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.send("r2", "two")
        await p.started("r1")
        del p.journal.stored["default", "r1"]
        await p.say("r1", "1", finish=True)
        await p.say("r2", "2", finish=True)
        await p.finished("r2")
        assert p.sessions.records["default", "s1"].turns == 2


# Redis away


async def test_a_journaled_answer_is_held_back_while_redis_is_away() -> None:
    """And goes on as if nothing had been."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.redis.go_away()
        await p.say("r1", "cd")
        await p.say("r1", "e", finish=True)
        await asyncio.sleep(0.12)  # two retries of the flusher
        assert p.text("r1") == "ab"
        assert p.is_open("r1")
        p.redis.come_back()
        await p.finished("r1")
        assert p.text("r1") == "abcde"
        assert len({event["attempt"] for event in p.publisher.log}) == 1


async def test_a_fresh_request_is_answered_while_redis_is_away_and_adopted_afterwards() -> None:
    """It came after this assignment, so nobody can have started it."""
    async with pipeline() as p:
        p.redis.go_away()
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.redis.come_back()
        await p.changes.until(lambda: "adopt" in p.calls.of("r1"))
        assert bytes(p.journal.of("r1").entry.ids) == b"ab"
        await p.say("r1", "c", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "abc"
        assert len({event["attempt"] for event in p.publisher.log}) == 1
        assert p.journal.of("r1").entry.done


async def test_a_fresh_request_is_finished_while_redis_is_away() -> None:
    """Nothing waits for Redis."""
    async with pipeline() as p:
        p.redis.go_away()
        await p.send("r1")
        await p.say("r1", "ab", finish=True)
        await p.finished("r1")
        await p.until(lambda: len(p.deliveries) == 0)
        assert p.text("r1") == "ab"
        assert p.flusher.is_idle


async def test_a_conversation_goes_on_while_redis_is_away_and_is_stored_afterwards() -> None:
    """A turn is never answered without the turns that this owner has seen."""
    async with pipeline() as p:
        await p.send("r1", "one")
        await p.say("r1", "first", finish=True)
        await p.finished("r1")
        p.redis.go_away()
        await p.send("r2", "two", turn=1)
        await p.say("r2", "second", finish=True)
        await p.finished("r2")
        p.redis.come_back()
        await p.send("r3", "three", turn=2)
        await p.say("r3", "third", finish=True)
        await p.finished("r3")
        stored = p.sessions.records["default", "s1"]
        assert [m["content"] for m in stored.messages if m["role"] == "assistant"] == [
            "first",
            "second",
            "third",
        ]


async def test_a_prompt_that_cannot_fit_is_refused_without_tokenising_it() -> None:
    """A megabyte would hold up every other stream for seconds."""
    async with pipeline() as p:
        await p.send("r1", "x" * (10_000 * 1_000 + 1))
        await p.finished("r1")
        assert p.publisher.of("r1")[-1]["error"]["code"] == "context_length_exceeded"


async def test_an_older_request_waits_while_redis_is_away() -> None:
    """Somebody may have started it before this assignment."""
    async with pipeline(end_offset=1000) as p:
        p.redis.go_away()
        await p.send("r1")
        await asyncio.sleep(0.1)  # several polls
        assert p.engine.added == []
        p.redis.come_back()
        await p.say("r1", "ab", finish=True)
        await p.finished("r1")


async def test_unknown_end_offsets_mean_that_nothing_is_fresh() -> None:
    """Kafka did not say where the partition ended."""
    async with pipeline(end_offset=None) as p:
        p.redis.go_away()
        await p.send("r1")
        await asyncio.sleep(0.1)  # several polls
        assert p.engine.added == []
        p.redis.come_back()
        await p.say("r1", "ab", finish=True)
        await p.finished("r1")


async def test_an_unjournaled_answer_stops_where_the_lease_ends() -> None:
    """And goes on when the group answers again."""
    async with pipeline() as p:
        p.redis.go_away()
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.lease.suspend()
        await p.say("r1", "cd")
        await asyncio.sleep(0.12)  # two retries of the flusher
        assert p.text("r1") == "ab"
        p.lease.resume()
        await p.say("r1", "e", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "abcde"


async def test_an_unjournaled_answer_is_fenced_when_another_has_started_it() -> None:
    """It came back from a pause: the other's journal counts."""
    async with pipeline() as p:
        p.redis.go_away()
        record = await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        other = p.journal.fences[PARTITION] + 10**6
        p.journal.fences[PARTITION] = other
        p.redis.come_back()
        await p.journal.claim(decode_request(record), token=other, may_create=True)
        p.journal.of("r1").entry = JournalEntry(other, start())
        await p.until(lambda: len(p.engine.added) == 2)
        await p.say("r1", "xyz", finish=True)
        await p.finished("r1")
        assert p.publisher.log[-1]["attempt"] == other


async def test_a_cancel_reaches_an_answer_that_was_unjournaled_when_it_came() -> None:
    """Another worker read it and wrote it for whoever has the request."""
    async with pipeline() as p:
        p.redis.go_away()
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        p.journal.early.add(("default", "r1", "s1"))
        p.redis.come_back()
        await p.finished("r1")
        assert p.publisher.log[-1]["choices"][0]["finish_reason"] == "cancelled"


async def test_an_answer_that_is_adopted_while_confirm_is_under_way_keeps_its_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis is back: CONFIRM finds no journal; ADOPT, in the same pipeline behind it, writes it.

    The answer "no journal" was taken for a loss, and all was published once more.
    """
    async with pipeline() as p:
        confirm = p.journal.confirm
        results = []

        async def confirm_then_adopt(generation: Generation) -> ConfirmResult:
            results.append(await confirm(generation))
            await p.flusher.tick()
            return results[-1]

        monkeypatch.setattr(p.journal, "confirm", confirm_then_adopt)
        p.publisher.acknowledging = False
        p.redis.go_away()
        await p.send("r1")
        await p.say("r1", "ab", finish=True)
        await p.changes.until(lambda: ("last", "r1") in p.calls)
        p.redis.come_back()
        p.publisher.acknowledging = True
        p.publisher.acknowledge()
        await p.finished("r1")
        assert results == [ConfirmResult.ABSENT, ConfirmResult.OK]
        assert len(p.publisher.log) == 1
