"""The reading loop at the end of the response log, and its survival over broker restarts.

Owns the live position of each partition. Knows nothing of who reads: events go to one callback, in
order.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from headrace.consumers.kafka_reader import KAFKA_TIMEOUT_S, bounded, find_partitions, reading
from headrace.consumers.log_event import LogEvent, decode_event
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

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


class LiveReader:
    """Hands every event on once, from the end of the log at the first start on; `run` never ends by
    itself.

    `positions`: the next offset that is handed on, by partition. It moves in the same step as the
    event goes to `on_event`, so whoever reads it in between sees exactly what has been handed on.
    """

    def __init__(self, settings: Settings, on_event: Callable[[LogEvent], None]) -> None:
        self.positions: dict[int, int] = {}
        self.started = asyncio.Event()
        """Set once the positions of all partitions are known."""
        self.brokers_answer = False
        self.num_broken_events = 0
        self._settings, self._on_event = settings, on_event

    async def run(self) -> None:
        """Read for ever; brokers that are away are tried again, with growing pauses.

        Cancel: the only way to end it; positions stay.
        """
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                try:
                    await self._read()
                except UnavailableError as problem:
                    _log.warning("response log interrupted", reason=str(problem))
                backoff_s = FIRST_BACKOFF_S if self.brokers_answer else backoff_s * 2
                self.brokers_answer = False
                await asyncio.sleep(min(backoff_s, MAX_BACKOFF_S))
        finally:
            self.brokers_answer = False

    async def _read(self) -> None:
        async with reading(self._settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
            parts = await find_partitions(consumer, self._settings.topics.responses)
            consumer.assign(parts)
            await self._seek(consumer, parts)
            self.brokers_answer = True
            self.started.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._hand_on(consumer), name="response-log.read")
                    tasks.create_task(self._probe(consumer, parts), name="response-log.probe")
            except* UnavailableError as problems:
                raise problems.exceptions[0] from None

    async def _seek(self, consumer: Any, parts: list[Any]) -> None:
        starts = await bounded("offsets", consumer.beginning_offsets(parts))
        ends = await bounded("offsets", consumer.end_offsets(parts))
        for part in parts:
            position = self.positions.get(part.partition, ends[part])
            if not starts[part] <= position <= ends[part]:
                _log.warning("response log was cut", partition=part.partition, position=position)
                position = starts[part]
            self.positions[part.partition] = position
            consumer.seek(part, position)

    async def _hand_on(self, consumer: Any) -> None:
        while True:
            try:
                batch = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_POLL_RECORDS)
            except KafkaError as problem:  # an offset that is gone too: `_seek` finds a new one
                raise UnavailableError("Kafka (responses)", KAFKA_TIMEOUT_S) from problem
            for part, records in batch.items():
                for record in records:
                    self._take(part.partition, record)

    def _take(self, number: int, record: Any) -> None:
        event = decode_event(record)
        self.positions[number] = record.offset + 1
        if event is None:
            self.num_broken_events += 1
        else:
            self._on_event(event)

    async def _probe(self, consumer: Any, parts: list[Any]) -> None:
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            try:
                await bounded("probe", consumer.end_offsets(parts))
            except UnavailableError:
                self.brokers_answer = False
            else:
                self.brokers_answer = True
