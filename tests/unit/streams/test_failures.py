"""Requests that fail, or end the workers that run them: tried again, isolated, given up."""

import asyncio
from dataclasses import replace

import pytest

from headrace.models.request import EngineError, EngineErrorCode
from headrace.schemas.request import Record, decode_request
from headrace.streams import failures
from headrace.streams.failures import MAX_FAILURES, failures_after
from headrace.streams.generation import Ending, JournalEntry, Start
from tests.unit.streams.pipeline import BROKEN_TEXT, Pipeline, pipeline

BOOM = EngineError(EngineErrorCode.INTERNAL_ERROR, "boom")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "BACKOFF_S", (0.01, 0.01))


def start(fingerprint: str = "fp-1") -> Start:
    """What an earlier owner settled."""
    return Start(list(b"hi"), 1, 0, 0, 5, "tiny", fingerprint)


async def left_behind(p: Pipeline, request_id: str, entry: JournalEntry, **more: str) -> Record:
    """A record whose journal an earlier owner wrote; not taken yet."""
    record = p.record(request_id, **more)
    await p.journal.claim(decode_request(record), token=1, may_create=True)
    p.journal.of(request_id).entry = entry
    return record


async def fail(p: Pipeline, request_id: str) -> None:
    """The engine gives it up, and what follows is over."""
    key = await p.started(request_id)
    num_added = len(p.engine.added)
    p.engine.fail(key, BOOM)
    await p.until(lambda: len(p.engine.added) > num_added or not p.is_open(request_id))


async def test_a_failed_generation_is_tried_again_from_where_it_was() -> None:
    """The reader sees one text; nothing becomes a dead letter."""
    async with pipeline() as p:
        await p.send("r1")
        await p.say("r1", "ab")
        await fail(p, "r1")
        assert p.engine.added[1].generated_ids == list(b"ab")
        await p.say("r1", "c", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "abc"
        assert len({event["attempt"] for event in p.publisher.log}) == 1
        assert p.publisher.dead == []


async def test_a_generation_that_keeps_failing_is_given_up() -> None:
    """Contract §5: after three tries a dead letter, and `failed` with the engine's own code."""
    async with pipeline() as p:
        record = await p.send("r1")
        await p.say("r1", "ab")
        for _ in range(MAX_FAILURES):
            await fail(p, "r1")
        await p.finished("r1")
        assert p.text("r1") == "ab"
        assert p.publisher.log[-1]["error"]["code"] == "internal_error"
        assert p.publisher.dead == [(record, "internal_error", MAX_FAILURES)]
        assert len(p.engine.added) == MAX_FAILURES
        assert p.calls.of("r1").count("alone") == 1, "the last try"


async def test_a_request_that_cannot_be_prepared_is_given_up() -> None:
    """Its encoder breaks each time; its neighbour is not touched."""
    async with pipeline() as p:
        record = await p.send("r1", BROKEN_TEXT)
        await p.send("r2", session="s2")
        await p.finished("r1")
        assert p.publisher.dead == [(record, "internal_error", MAX_FAILURES)]
        await p.say("r2", "b", finish=True)
        await p.finished("r2")
        assert p.text("r2") == "b"


async def test_a_cancel_between_two_tries_shows_all_text() -> None:
    """Also what the engine held back, as it could have become the stop string."""
    async with pipeline() as p:
        await p.send("r1", stop=["END"])
        await p.say("r1", "abEN")
        key = await p.started("r1")
        p.engine.fail(key, BOOM)
        p.control(action="cancel", request_id="r1", session_id="s1")
        await p.finished("r1")
        assert p.text("r1") == "abEN"
        assert p.publisher.log[-1]["choices"][0]["finish_reason"] == "cancelled"
        assert len(p.engine.added) == 1


@pytest.mark.parametrize(
    ("gone", "entry", "count"),
    [
        (False, JournalEntry(1, runner="w", failures=2), 2),
        (True, JournalEntry(1, runner="w"), 1),
        (True, JournalEntry(1, runner="w", failures=1), 2),
        (True, JournalEntry(1, runner="w", failures=2), 2),
        (True, JournalEntry(1, runner="w", failures=2, alone=True), 3),
        (True, JournalEntry(1, start(), [1, 2], runner="w", failures=2, num_ids_claimed=1), 1),
        (True, JournalEntry(1, start(), [1], runner="w", failures=1, num_ids_claimed=1), 2),
        (True, JournalEntry(1, start(), [1], ending=Ending("stop"), runner="w"), 0),
        (True, JournalEntry(1, runner="w", failures=3), 3),
    ],
)
def test_what_a_dead_worker_tells_of_a_request(gone: bool, entry: JournalEntry, count: int) -> None:
    """Only one that ran alone, and did not get on, is taken for the reason."""
    assert failures_after(entry, runner_is_gone=gone) == count


async def test_a_suspect_begins_alone_and_is_marked_before() -> None:
    """Two workers died of it or of a neighbour: a second suspect waits until it got on."""
    async with pipeline() as p:
        p.roster.gone.add("dead")
        for name in ("r1", "r2"):
            entry = JournalEntry(1, runner="dead", failures=1)
            await p.take(await left_behind(p, name, entry, session=name))
        await p.started("r1")
        await p.settle()
        assert p.key("r2") is None
        assert p.engine.added[0].begins_alone
        assert p.calls.of("r1")[-1] == "alone"
        assert not p.journal.of("r2").entry.alone
        await p.say("r1", "a")
        await p.started("r2")
        assert not p.journal.of("r1").entry.alone, "r2 may end the worker before r1 is flushed"
        assert p.journal.of("r1").entry.failures == 1
        assert [what for what, _ in p.calls if what in ("alone", "share")][:2] == ["alone", "share"]
        for name in ("r1", "r2"):
            await p.say(name, "b", finish=True)
            await p.finished(name)
        assert p.publisher.dead == []


async def test_a_suspect_that_fails_while_it_is_alone_is_given_up() -> None:
    """Its third failure, though the worker lives."""
    async with pipeline() as p:
        p.roster.gone.add("dead")
        await p.take(await left_behind(p, "r1", JournalEntry(1, runner="dead", failures=1)))
        await fail(p, "r1")
        await p.finished("r1")
        assert [attempts for _, _, attempts in p.publisher.dead] == [MAX_FAILURES]
        assert len(p.engine.added) == 1


async def test_a_request_that_ended_three_workers_is_given_up() -> None:
    """It does not reach the engine a fourth time; what was shown of it stays."""
    async with pipeline() as p:
        p.roster.gone.add("dead")
        entry = JournalEntry(
            1, start(), [97], [1], runner="dead", num_ids_claimed=1, failures=2, alone=True
        )
        record = await left_behind(p, "r1", entry)
        await p.take(record)
        await p.finished("r1")
        assert p.publisher.dead == [(record, "internal_error", MAX_FAILURES)]
        assert [event["object"] for event in p.publisher.log] == ["chat.completion.chunk", "error"]
        assert p.engine.added == []


async def test_a_suspect_that_is_lost_lets_the_next_one_begin() -> None:
    """Its partition went away while it began alone."""
    async with pipeline() as p:
        p.roster.gone.add("dead")
        entry = JournalEntry(1, runner="dead", failures=1)
        await p.take(await left_behind(p, "r1", entry))
        await p.started("r1")
        p.lose_partitions()
        await p.until(lambda: len(p.deliveries) == 0)
        async with asyncio.timeout(1), p.parts.isolation:
            pass


async def test_a_text_that_another_model_began_begins_again() -> None:
    """Half a sentence of each would be neither's: a larger attempt, from the start."""
    async with pipeline() as p:
        entry = JournalEntry(1, start("another model"), list(b"ab"), [2], confirmed=1)
        await p.take(await left_behind(p, "r1", entry))
        await p.say("r1", "xyz", finish=True)
        await p.finished("r1")
        assert p.text("r1") == "xyz"
        assert p.engine.added[0].generated_ids == []
        assert p.publisher.log[0]["sequence_number"] == 0
        assert p.publisher.log[0]["attempt"] > 1


async def test_an_answer_that_another_model_ended_is_published_as_it_is() -> None:
    """A rolling upgrade between the last flush and the last acknowledgement."""
    async with pipeline() as p:
        entry = JournalEntry(1, start("another model"), list(b"ab"), [2])
        entry = replace(entry, ending=Ending(finish_reason="stop"))
        await p.take(await left_behind(p, "r1", entry))
        await p.finished("r1")
        assert p.text("r1") == "ab"
        assert p.engine.added == []
