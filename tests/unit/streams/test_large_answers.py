"""Events that the response topic does not take: the answer fails there, the worker goes on."""

import pytest

from headrace.streams.generation import Ending, JournalEntry
from tests.unit.streams.pipeline import Pipeline, pipeline
from tests.unit.streams.test_failures import left_behind, start

LIMIT = 600


def shape(p: Pipeline) -> list[tuple[int, str]]:
    """Number and kind of each event of r1."""
    return [(e["sequence_number"], e["object"]) for e in p.publisher.of("r1")]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_too_large_ends_with_a_failed_event(stream: bool) -> None:
    """Case C6. The producer's refusal ended the worker, and each next owner."""
    async with pipeline() as p:
        p.publisher.max_event_bytes = LIMIT
        await p.send("r1", stream=stream)
        await p.say("r1", "x" * LIMIT, finish=True)
        await p.finished("r1")
        assert shape(p) == [(0, "error")]
        assert p.publisher.log[0]["error"]["code"] == "internal_error"
        assert p.sessions.records == {}
        assert p.key("r1") is None


async def test_what_came_before_stays_and_the_engine_makes_no_more() -> None:
    """The second chunk does not fit."""
    async with pipeline() as p:
        p.publisher.max_event_bytes = LIMIT
        await p.send("r1")
        await p.say("r1", "ab")
        await p.changes.until(lambda: "publish" in p.calls.of("r1"))
        await p.say("r1", "x" * LIMIT)
        await p.finished("r1")
        assert shape(p) == [(0, "chat.completion.chunk"), (1, "error")]
        assert p.key("r1") is None


async def test_the_next_owner_ends_it_in_the_same_place() -> None:
    """The journal holds a completed answer: nobody can have published its second event."""
    async with pipeline() as p:
        p.publisher.max_event_bytes = LIMIT
        ids = list(b"ab" + b"x" * LIMIT)
        entry = JournalEntry(1, start(), ids, [2, len(ids)], 1, Ending("stop"))
        await p.take(await left_behind(p, "r1", entry))
        await p.finished("r1")
        assert shape(p) == [(1, "error")]
        assert p.sessions.records == {}
