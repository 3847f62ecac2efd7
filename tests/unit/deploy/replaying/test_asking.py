"""Producing a dump's requests: what is kept, what is added, and how far ahead of the answers."""

import asyncio
from typing import Any, cast

from headrace.deploy.replaying.asking import Asking
from headrace.deploy.replaying.pace import Pace
from headrace.producers.outgoing import OutgoingRecord
from headrace.producers.record_writer import RecordWriter
from headrace.schemas.replay import Origin, replay_headers
from headrace.schemas.request import Record

VALUE = b'{"request_id":"%d","prompt":"x"}'


class ListWriter:
    """Takes records and keeps them."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    async def write(self, record: OutgoingRecord) -> None:
        self.records.append(record)

    async def flush(self) -> None:
        pass


def record(number: int, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        **{"topic": "live.requests", "partition": 2, "offset": number, "timestamp_ms": number},
        **{"key": b"s", "value": VALUE % number, "headers": (("h", b"1"), ("h", None))},
    }
    return Record(**(fields | changes))


def new(max_in_flight: int = 100) -> tuple[Asking, ListWriter]:
    writer = ListWriter()
    made = Asking(cast(RecordWriter, writer), "own.requests", "id", max_in_flight=max_in_flight)
    return made, writer


async def test_all_but_the_topic_stays_and_headers_are_added() -> None:
    """Also of a tombstone and of bytes that are no request."""
    asked, writer = new()
    originals = [record(1), record(2, value=None), record(3, value=b"\xff", key=None)]
    await asked.ask_all(originals, Pace())
    for original, written in zip(originals, writer.records, strict=True):
        origin = Origin("live.requests", 2, original.offset, original.timestamp_ms)
        assert written == OutgoingRecord(
            "own.requests",
            original.key,
            original.value,
            [*original.headers, *replay_headers("id", origin)],
            2,
        )


async def test_what_was_replayed_before_keeps_its_first_place() -> None:
    """Its recorded answer was made with the id and the seed of that."""
    first = Origin("first.requests", 0, 1, 2)
    asked, writer = new()
    await asked.ask_all([record(1, headers=tuple(replay_headers("old", first)))], Pace())
    assert writer.records[0].headers[-3:] == replay_headers("id", first)


async def test_it_stays_a_bounded_number_ahead() -> None:
    """Records that get no answer of their own do not count."""
    asked, writer = new(max_in_flight=2)
    records = [record(1), record(1), record(9, value=None), record(2), record(3), record(4)]
    task = asyncio.create_task(asked.ask_all(records, Pace()))
    for num_written in (4, 5, 6):
        await asyncio.sleep(0.01)
        assert num_written == len(writer.records)
        asked.answered()
    await task
    assert asked.is_due
    asked.answered()
    assert not asked.is_due


async def test_an_original_pace_is_kept() -> None:
    """The distances, on the clock; here a hundred times as fast."""
    asked, writer = new()
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await asked.ask_all([record(1_000), record(11_000), record(21_000)], Pace(100.0))
    assert 0.2 <= clock() - began_s < 2
    assert len(writer.records) == 3
