"""The past of the response log, read once for all who want the same part of it.

Owns a few consumers that are used again and again: whoever wants the past joins a queue and is
given what is read (`past_queue` has the rules). A thousand readers of one place cost one reading.
"""

import asyncio
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError

from headrace.consumers.cursor import resume_gap
from headrace.consumers.kafka_reader import (
    KAFKA_TIMEOUT_S,
    close_consumer,
    open_consumer,
)
from headrace.consumers.log_event import decode_event
from headrace.consumers.past_queue import PastQueue, PastReader
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from headrace.schemas.settings import Settings

NUM_LANES = 2
"""Consumers that read at once: while one waits for the network the other hands out. More would only
take turns on the one event loop, and delay live events.
"""

MAX_READERS = 10_000
"""A reader costs some KB while it waits; what it is given is bounded by itself."""

FETCH_BYTES = 256 * 1024
"""Of one fetch, as it is compressed: a few hundred records."""

CHUNK_RECORDS = 1_000
"""Read for one turn at most: 20 ms of work, in several steps."""

STEP_RECORDS = 100
"""Handed out in one go, 2 ms of work: the loop stays free for live events in between."""

RETRY_PAUSE_S = 0.5
_FETCH_WAIT_MS, _POLL_MS = 50, 500

_log = structlog.get_logger(__name__)


class SharedPast:
    """Readers join and leave; between `run`'s start and its end they are served."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue = PastQueue()
        self._work = asyncio.Event()
        self._readers: set[PastReader] = set()
        self._is_over = False
        self.num_records = 0
        """Read since the start."""

    @property
    def num_readers(self) -> int:
        """Those that joined and have not left."""
        return len(self._readers)

    def join(self, reader: PastReader) -> None:
        """Read for `reader` where it is behind; it is given events and notices. Again after it took
        no more.

        Raises: RequestError `overloaded` for one reader too many; UnavailableError at the end.
        """
        if self._is_over:
            raise UnavailableError("the response log", 0.0)
        if reader not in self._readers and len(self._readers) >= MAX_READERS:
            text = f"{MAX_READERS} readers of the past at once already; try again"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._readers.add(reader)
        self._queue.join(reader)
        self._work.set()

    def leave(self, reader: PastReader) -> None:
        """Read no more for `reader`. Safe to call twice."""
        self._readers.discard(reader)
        self._queue.leave(reader)

    async def run(self) -> None:
        """Serve for ever. Cancel: the only way to end it; the consumers are closed, and the readers
        get UnavailableError.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(NUM_LANES):
                    tasks.create_task(self._serve(), name=f"shared-past.{number}")
        finally:
            self._is_over = True
            for reader in list(self._readers):
                reader.notice(UnavailableError("the response log", 0.0))

    async def _serve(self) -> None:
        lane = _Lane(self._settings)
        try:
            while True:
                self._work.clear()
                place = self._queue.claim()
                if place is None:
                    lane.rest()
                    await self._work.wait()
                    continue
                try:
                    await self._read_chunk(lane, *place)
                finally:
                    self._queue.release(place[0])
                    self._work.set()  # there may be more in this partition, for any lane
        finally:
            await lane.close()

    async def _read_chunk(self, lane: "_Lane", partition: int, start: int) -> None:
        first, end = start, start + 1
        try:
            for _ in range(CHUNK_RECORDS // STEP_RECORDS):
                records, end = await lane.read(partition, first)
                self.num_records += len(records)
                events = [event for event in map(decode_event, records) if event is not None]
                self._queue.hand_out(partition, first, end, events)
                await asyncio.sleep(0)  # readers take what they were given
                if end == first or not self._queue.is_wanted(partition, end):
                    break
                first = end
        except OffsetOutOfRangeError:
            gap = resume_gap("the log was cut off while it was read")
            self._queue.fail(partition, first, gap)
        except CorruptRecordException:
            self._fail_unreadable(partition, first)
        except (KafkaError, UnavailableError, TimeoutError) as problem:
            _log.warning("the past is not read", reason=str(problem) or "no answer")
            await lane.close()
            await asyncio.sleep(RETRY_PAUSE_S)  # those who wait have bounds of their own
        except Exception:  # aiokafka's ValueError for a broken batch, say: never the end for others
            self._fail_unreadable(partition, first)

    def _fail_unreadable(self, partition: int, offset: int) -> None:
        _log.exception("a record cannot be read", partition=partition, offset=offset)
        reason = "has a record that cannot be read"
        self._queue.fail(
            partition, offset, UnavailableError("Kafka (replay)", KAFKA_TIMEOUT_S, reason)
        )


class _Lane:
    """One consumer, opened when it is needed, at one place of the log at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._at: tuple[int, int] | None = None

    async def read(self, partition: int, offset: int) -> tuple[list[Any], int]:
        """Some records from `offset` on, and where they end: behind markers, too.

        Raises: KafkaError, ValueError (aiokafka's for what it cannot read); UnavailableError;
            TimeoutError.
        """
        part = TopicPartition(self._settings.topics.responses, partition)
        if self._consumer is None:
            self._consumer = await open_consumer(
                self._settings,
                max_partition_fetch_bytes=FETCH_BYTES,
                fetch_max_wait_ms=_FETCH_WAIT_MS,
            )
        if self._at != (partition, offset):
            self._consumer.assign([part])
            self._consumer.seek(part, offset)
        self._at = None  # unless all goes well
        async with asyncio.timeout(KAFKA_TIMEOUT_S):
            found = await self._consumer.getmany(
                part, timeout_ms=_POLL_MS, max_records=STEP_RECORDS
            )
            end: int = await self._consumer.position(part)
        self._at = (partition, end)
        return found.get(part, []), end

    def rest(self) -> None:
        """Ask the brokers for nothing until the next reading."""
        if self._at is not None:
            self._consumer.pause(*self._consumer.assignment())
            self._at = None

    async def close(self) -> None:
        """The next reading opens another consumer. Safe to call twice."""
        consumer, self._consumer, self._at = self._consumer, None, None
        if consumer is not None:
            await close_consumer(consumer)
