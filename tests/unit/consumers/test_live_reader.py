"""The reading loop against a scripted consumer: what it survives, and how it knows its log."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from headrace.consumers.live_reader import LiveReader
from headrace.consumers.log_event import LogEvent
from headrace.consumers.recent_log import RecentLog
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from tests.unit.consumers.records import LogRecord, event_record

PART = TopicPartition("headrace.responses", 0)
Step = Callable[[], list[LogRecord]]


class ScriptedLog:
    """A log of one partition and the consumers of it; `trouble` is raised by the next polls."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.start = 0
        self.trouble: list[Exception] = []
        self.on_trouble: Callable[[], object] = list
        self.num_opened = self.num_asked = 0
        self.grows_while_asked = False
        """A record is written, and read, after its ends were found and before they are told."""
        self._place = 0

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.start

    @asynccontextmanager
    async def reading(self, _settings: Settings, **_: Any) -> AsyncIterator["ScriptedLog"]:
        self.num_opened += 1
        yield self

    async def find_partitions(self, _consumer: Any, _topic: str) -> list[Any]:
        return [PART]

    def assign(self, _parts: list[Any]) -> None: ...

    def seek(self, _part: Any, offset: int) -> None:
        self._place = offset

    async def position(self, _part: Any) -> int:
        return self._place

    async def beginning_offsets(self, _parts: list[Any]) -> dict[Any, int]:
        return {PART: self.start}

    async def end_offsets(self, _parts: list[Any]) -> dict[Any, int]:
        ends = {PART: self.end}
        self.num_asked += 1
        if self.grows_while_asked:
            write(self, 1)
            while self._place < self.end:  # noqa: ASYNC110 - `getmany` is the only other task
                await asyncio.sleep(0.005)
        return ends

    async def getmany(self, **_: Any) -> dict[Any, list[Any]]:
        await asyncio.sleep(0.005)
        if self.trouble:
            self.on_trouble()
            raise self.trouble.pop(0)
        found = [record for record in self.records if record.offset >= self._place]
        if not found:
            return {}
        self._place = found[-1].offset + 1
        return {PART: found}


def write(log: ScriptedLog, count: int, *, text: str = "x", offset: int | None = None) -> None:
    """Add events of one endless answer."""
    for _ in range(count):
        place = log.end if offset is None else offset
        log.records.append(event_record("s", "r", 0, partition=0, offset=place, text=text))
        offset = None


class Reading:
    """A live reader, what it handed on, and what it was told to end."""

    def __init__(self) -> None:
        self.recent = RecentLog(1_000_000)
        self.seen: list[int] = []
        self.cuts: list[int] = []
        self.reader = LiveReader(
            Settings(), self._take, recent=self.recent, on_cut=self.cuts.append
        )

        self.running = asyncio.create_task(self.reader.run())

    def _take(self, event: LogEvent) -> None:
        self.seen.append(event.offset)

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not check():  # noqa: ASYNC110 - any condition
                await asyncio.sleep(0.005)


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch) -> ScriptedLog:
    scripted = ScriptedLog()
    write(scripted, 3)
    place = "headrace.consumers.live_reader"
    monkeypatch.setattr(f"{place}.reading", scripted.reading)
    monkeypatch.setattr(f"{place}.find_partitions", scripted.find_partitions)
    monkeypatch.setattr(f"{place}.FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(f"{place}.PROBE_INTERVAL_S", 0.01)
    return scripted


@pytest.fixture
async def reading(log: ScriptedLog) -> AsyncIterator[Reading]:
    found = Reading()
    async with asyncio.timeout(5):
        await found.reader.started.wait()
    yield found
    found.running.cancel()
    await asyncio.wait({found.running})


@pytest.mark.parametrize(
    "problem", [ValueError("corrupt batch"), CorruptRecordException(), RuntimeError("a bug")]
)
async def test_what_a_client_library_raises_never_ends_the_reading(
    log: ScriptedLog, reading: Reading, problem: Exception
) -> None:
    """I-7: it is tried again and not ready meanwhile; nothing is missing or doubled afterwards."""
    write(log, 2)
    await reading.until(lambda: len(reading.seen) == 2)
    log.trouble = [problem] * 3
    await reading.until(lambda: not reading.reader.brokers_answer)
    write(log, 2)
    await reading.until(lambda: len(reading.seen) == 4)
    assert reading.reader.brokers_answer
    assert reading.seen == [3, 4, 5, 6]
    assert log.num_opened == 4
    assert reading.cuts == []


async def test_a_batch_that_stays_unreadable_is_visible_as_not_ready(
    log: ScriptedLog, reading: Reading
) -> None:
    """Opening the connection again is no success: the next poll has to be."""
    log.trouble = [ValueError("corrupt batch")] * 1_000
    await reading.until(lambda: log.num_opened > 2)
    assert not reading.reader.brokers_answer


async def test_it_ends_when_it_is_told_to_at_the_moment_of_an_error(
    log: ScriptedLog, reading: Reading
) -> None:
    """Regression: the group of its tasks raised the error, and the cancellation was lost."""
    log.on_trouble = reading.running.cancel
    log.trouble = [ValueError("corrupt batch")]
    await asyncio.wait({reading.running}, timeout=5)
    assert reading.running.cancelled()
    assert not reading.reader.brokers_answer


async def test_a_log_that_was_cut_behind_the_reader_goes_on_at_its_start(
    log: ScriptedLog, reading: Reading
) -> None:
    """Retention overtook it: who reads is told, and memory begins anew."""
    write(log, 1)
    await reading.until(lambda: reading.seen == [3])
    log.records, log.start = [], 50
    write(log, 2, offset=50)
    log.trouble = [ValueError("gone")]
    await reading.until(lambda: reading.seen == [3, 50, 51])
    assert reading.cuts == [0]
    assert reading.recent.start(0) == 50


@pytest.mark.parametrize("count", [2, 9])
async def test_another_log_in_its_place_is_told_from_the_old_one(
    log: ScriptedLog, reading: Reading, count: int
) -> None:
    """A topic made anew is read from its start, also where it is as long as the old one."""
    write(log, 2)
    await reading.until(lambda: reading.seen == [3, 4])
    log.records = []
    write(log, count, text="another")
    log.trouble = [ValueError("gone")]
    await reading.until(lambda: reading.seen == [3, 4, *range(count)])
    assert reading.cuts == [0]


async def test_waiting_for_a_place_is_bounded(log: ScriptedLog, reading: Reading) -> None:
    """It ends when the place is reached, and after its time."""
    waiting = asyncio.create_task(reading.reader.reach({0: 5}, 5.0))
    await asyncio.sleep(0)
    write(log, 2)
    await waiting
    assert reading.reader.positions == {0: 5}
    with pytest.raises(UnavailableError):
        await reading.reader.reach({0: 6}, 0.05)


async def test_a_log_that_grows_while_it_is_looked_at_is_not_taken_for_cut(
    log: ScriptedLog, reading: Reading
) -> None:
    """The ends that are told are older than what was read meanwhile; the reading goes on."""
    log.grows_while_asked = True
    num_asked = log.num_asked
    await reading.until(lambda: log.num_asked >= num_asked + 4)
    assert (log.num_opened, reading.cuts) == (1, [])
    assert reading.seen == list(range(3, 3 + len(reading.seen)))


async def test_a_log_that_was_cut_is_noticed_without_a_new_record(
    log: ScriptedLog, reading: Reading
) -> None:
    """Its end lies before what was read: the reading begins anew."""
    write(log, 2)
    await reading.until(lambda: reading.seen == [3, 4])
    del log.records[2:]
    await reading.until(lambda: reading.cuts == [0])
