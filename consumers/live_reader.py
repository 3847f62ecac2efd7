"""The reading loop at the end of the response log, and its survival over broker restarts.

Owns the live position of each partition, and fills the recent log. Knows nothing of who reads:
events go to one callback, in order.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import KafkaError

from headrace.consumers.kafka_reader import KAFKA_TIMEOUT_S, bounded, find_partitions, reading
from headrace.consumers.log_event import LogEvent, decode_event
from headrace.consumers.recent_log import RecentLog
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import until_first_done

FETCH_BYTES = 1024 * 1024
MAX_POLL_RECORDS = 500
"""Handed on in one go, about 5 ms of work: the loop stays free for others in between."""

POLL_MS = 1000
PROBE_INTERVAL_S = 5.0
"""How often the brokers are asked for their ends: aiokafka itself waits for lost brokers in
silence.
"""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0

_log = structlog.get_logger(__name__)


class _Print(NamedTuple):
    """What tells the newest record of a partition from one of another log in its place."""

    offset: int
    timestamp_ms: int
    value: bytes | None


class LiveReader:
    """Hands every event on once, from the end of the log at the first start on; `run` never ends by
    itself.

    `positions`: the next offset that is handed on, by partition. It moves in the same step as the
    event goes to the recent log and to `on_event`, so whoever reads it in between sees exactly what
    has been handed on. `on_cut` is told of a partition that lost what was not handed on yet, or is
    of another log now.
    """

    def __init__(
        self,
        settings: Settings,
        on_event: Callable[[LogEvent], None],
        *,
        recent: RecentLog | None = None,
        on_cut: Callable[[int], None] | None = None,
    ) -> None:
        self.positions: dict[int, int] = {}
        self.started = asyncio.Event()
        """Set once the positions of all partitions are known."""
        self.brokers_answer = False
        self.num_broken_events = 0
        self._settings, self._recent = settings, recent
        self._on_event, self._on_cut = on_event, on_cut
        self._newest: dict[int, _Print] = {}
        self._to_check: dict[int, _Print] = {}
        """Records that were handed on, and are read once more after an interruption."""
        self._moved = asyncio.Event()
        self._is_failing = False
        """The last reading was interrupted, and none has succeeded since."""

    async def reach(self, ends: dict[int, int], timeout_s: float) -> None:
        """Wait until everything before `ends` was handed on. Raises: UnavailableError."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self.positions[number] < end for number, end in ends.items()):
                    await self._moved.wait()
        except TimeoutError:
            raise UnavailableError("the response log", timeout_s) from None

    async def run(self) -> None:
        """Read for ever; what goes wrong is tried again, with growing pauses, and not ready
        meanwhile.

        Cancel: the only way to end it; positions stay.
        """
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                try:
                    await self._read()
                except UnavailableError as problem:
                    _log.warning("response log interrupted", reason=str(problem))
                except Exception:  # a batch that aiokafka cannot read, say: never the end
                    _log.exception("response log interrupted")
                backoff_s = backoff_s * 2 if self._is_failing else FIRST_BACKOFF_S
                self.brokers_answer, self._is_failing = False, True
                await asyncio.sleep(min(backoff_s, MAX_BACKOFF_S))
        finally:
            self.brokers_answer = False

    async def _read(self) -> None:
        async with reading(self._settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
            parts = await find_partitions(consumer, self._settings.topics.responses)
            consumer.assign(parts)
            await self._seek(consumer, parts)
            self.brokers_answer = not self._is_failing
            self.started.set()
            await until_first_done(self._hand_on(consumer, parts), self._probe(consumer, parts))

    async def _seek(self, consumer: Any, parts: list[Any]) -> None:
        """Go to the ends at the first start, later to where the reading was interrupted: one record
        before it, which shows whether this is still the same log.
        """
        starts = await bounded("offsets", consumer.beginning_offsets(parts))
        ends = await bounded("offsets", consumer.end_offsets(parts))
        self._to_check.clear()
        for part in parts:
            number = part.partition
            position = self.positions.get(number)
            if position is None:
                self._begin(number, ends[part])
            elif not starts[part] <= position <= ends[part]:
                self._cut(number, starts[part])
            elif number in self._newest and starts[part] <= self._newest[number].offset:
                self._to_check[number] = self._newest[number]
            check = self._to_check.get(number)
            consumer.seek(part, check.offset if check else self.positions[number])

    def _begin(self, number: int, offset: int) -> None:
        self.positions[number] = offset
        self._newest.pop(number, None)
        if self._recent is not None:
            self._recent.begin(number, offset, now_ms=_now_ms())

    def _cut(self, number: int, start: int) -> None:
        _log.warning("response log was cut", partition=number, position=self.positions[number])
        self._begin(number, start)
        if self._on_cut is not None:
            self._on_cut(number)

    async def _hand_on(self, consumer: Any, parts: list[Any]) -> None:
        while True:
            try:
                batch = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_POLL_RECORDS)
            except KafkaError as problem:  # an offset that is gone too: `_seek` finds a new one
                raise UnavailableError(
                    "Kafka (responses)", KAFKA_TIMEOUT_S, type(problem).__name__
                ) from problem
            self.brokers_answer, self._is_failing = True, False
            now_ms = _now_ms()
            for part, records in batch.items():
                await self._check_log(consumer, part, records)
                for record in records:
                    self._take(part.partition, record, now_ms)
            if not batch:
                await self._pass_markers(consumer, parts)
            self._moved.set()
            self._moved = asyncio.Event()

    async def _check_log(self, consumer: Any, part: Any, records: list[Any]) -> None:
        known = self._to_check.pop(part.partition, None)
        if known is None or _print(records[0]) == known:
            return
        starts = await bounded("offsets", consumer.beginning_offsets([part]))
        self._cut(part.partition, starts[part])
        consumer.seek(part, starts[part])
        records.clear()

    def _take(self, number: int, record: Any, now_ms: int) -> None:
        if record.offset < self.positions[number]:
            return  # it was read once more for the check
        event = decode_event(record)
        self.positions[number] = record.offset + 1
        self._newest[number] = _print(record)
        if event is None:
            self.num_broken_events += 1
            return
        if self._recent is not None:
            self._recent.add(record, event, now_ms=now_ms)
        self._on_event(event)

    async def _pass_markers(self, consumer: Any, parts: list[Any]) -> None:
        """Transaction markers move the position without a record."""
        for part in parts:
            position = await bounded("position", consumer.position(part))
            if part.partition not in self._to_check:
                self.positions[part.partition] = max(self.positions[part.partition], position)

    async def _probe(self, consumer: Any, parts: list[Any]) -> None:
        """Raises: UnavailableError: the connection is opened anew, and the log looked at."""
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            before = dict(self.positions)  # they move on while the brokers are asked
            try:
                ends = await bounded("probe", consumer.end_offsets(parts))
                starts = await bounded("probe", consumer.beginning_offsets(parts))
            except UnavailableError:
                self.brokers_answer = False  # now: to close the connection takes its time
                raise
            for part in parts:
                if ends[part] < before[part.partition]:
                    raise UnavailableError("Kafka (responses)", PROBE_INTERVAL_S, "was cut")
                if self._recent is not None:
                    self._recent.cut(part.partition, starts[part])


def _print(record: Any) -> _Print:
    return _Print(record.offset, record.timestamp, record.value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
