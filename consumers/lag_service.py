"""Measures how far the workers' group is behind, without being of it: nothing joins or commits.

Each reading asks for the committed offsets, the starts and the ends of all partitions of the
requests and control topics, and goes on reading the records between, so that markers and aborted
records do not count (`lag_backlog` has the rules). Knows nothing of who asks.
"""

import asyncio
import time
from collections.abc import Collection

import structlog

from headrace.consumers.lag import Lag, PartitionLag
from headrace.consumers.lag_answers import newest_events
from headrace.consumers.lag_backlog import Backlog, Place, floor_of
from headrace.consumers.lag_kafka import (
    ALONE_POLL_MS,
    POLL_MS,
    LagKafka,
    Offsets,
    OffsetsGoneError,
    UnreadableError,
)
from headrace.consumers.lag_work import NO_WORK, AnswerLengths, work_of
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

READ_TIMEOUT_S = 20.0
"""For one reading; closing a connection that failed may take 10 s more."""

CATCH_UP_S = 2.0
"""How long one reading reads records. Where that is not enough it counts offsets, and the next
reading goes on.
"""

ANSWERS_INTERVAL_S = 60.0
"""How often the newest answers are looked at, where nobody tells this service of each."""

_log = structlog.get_logger(__name__)


class LagService:
    """Readings of the lag, one after the other.

    `lengths`: given by who feeds it from the live log; without it the service looks for itself.
    """

    def __init__(self, settings: Settings, *, lengths: AnswerLengths | None = None) -> None:
        self._settings = settings
        self._is_fed = lengths is not None
        self._lengths = lengths or AnswerLengths()
        self._looked_s: float | None = None
        self._backlog = Backlog()
        self._kafka: LagKafka | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Connect now; `read` would do it, too. Raises: UnavailableError."""
        async with self._lock:
            await self._connected()

    async def stop(self) -> None:
        """Close the connection; a later `read` makes another. Safe to call twice."""
        async with self._lock:
            await self._disconnect()

    async def read(self) -> Lag:
        """The lag now. Right to the record once the backlog has been read: at the first reading up
        to some 100,000 records (2 cores, 900 bytes each), see also `lag_backlog.MAX_REMEMBERED`.

        Raises: UnavailableError after at most READ_TIMEOUT_S + 10 s; trying again helps when Kafka
        and the topics are back. Cancel: safe.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    return await self._read()
            except BaseException as problem:
                await self._disconnect()
                if isinstance(problem, TimeoutError):
                    what = f"Kafka at {self._settings.kafka}"
                    raise UnavailableError(what, READ_TIMEOUT_S) from problem
                raise

    async def _read(self) -> Lag:
        kafka = await self._connected()
        topics = self._settings.topics
        places = await kafka.places((topics.requests, topics.control))
        await self._look_at_answers()
        offsets = await kafka.offsets(places)
        self._follow(kafka, offsets)
        self._move(kafka, offsets)
        await self._catch_up(kafka)
        self._judge_anew(kafka, offsets)
        return self._lag(offsets)

    async def _connected(self) -> LagKafka:
        if self._kafka is None:
            self._backlog.clear()  # the topics may be others now
            self._kafka = await LagKafka.open(self._settings)
        return self._kafka

    async def _disconnect(self) -> None:
        kafka, self._kafka = self._kafka, None
        if kafka is not None:
            await kafka.close()

    async def _look_at_answers(self) -> None:
        now_s = time.monotonic()
        if self._looked_s is not None and (
            self._is_fed or now_s < self._looked_s + ANSWERS_INTERVAL_S
        ):
            return
        self._looked_s = now_s
        try:
            for event in await newest_events(self._settings):
                self._lengths.add(event)
        except UnavailableError as problem:
            _log.info("lag: the newest answers are not known", reason=str(problem))

    def _follow(self, kafka: LagKafka, offsets: dict[Place, Offsets]) -> None:
        """Partitions may have been added, or be there no more."""
        if kafka.followed == set(offsets):
            return
        for gone in kafka.followed - set(offsets):
            self._backlog.forget(gone)
        ones = {place: self._backlog.at(place, one.start) for place, one in offsets.items()}
        kafka.follow({place: one.read_to for place, one in ones.items()})

    def _move(self, kafka: LagKafka, offsets: dict[Place, Offsets]) -> None:
        for place, found in offsets.items():
            one = self._backlog.get(place)
            high_water = None if one.is_other_log(found.end) else kafka.high_water(place)
            floor = floor_of(found.committed, found.start, found.end, high_water)
            if one.move(floor, found.end):
                kafka.seek(place, one.read_to)

    def _judge_anew(self, kafka: LagKafka, offsets: dict[Place, Offsets]) -> None:
        """What a committed offset beyond the end means is known once its partition was fetched."""
        for place, found in offsets.items():
            one = self._backlog.get(place)
            if found.committed is not None and found.committed > one.end:
                high_water = kafka.high_water(place)
                if one.move(floor_of(found.committed, found.start, one.end, high_water), one.end):
                    kafka.seek(place, one.read_to)

    async def _catch_up(self, kafka: LagKafka) -> None:
        deadline_s = time.monotonic() + CATCH_UP_S
        while self._backlog.behind() and time.monotonic() < deadline_s:
            places = self._backlog.with_room()
            kafka.fetch_only(places)
            try:
                await self._read_some(kafka, places)
            except OffsetsGoneError as problem:
                for place, start in (await kafka.starts(problem.places)).items():
                    self._backlog.get(place).restart(start)
                    kafka.seek(place, start)
            except UnreadableError:
                await self._leave_out_unreadable(kafka)
        kafka.fetch_only(self._backlog.with_room())

    async def _read_some(
        self, kafka: LagKafka, places: Collection[Place], *, wait_ms: int = POLL_MS
    ) -> None:
        requests = self._settings.topics.requests
        for record in await kafka.poll(places, wait_ms=wait_ms):
            work = work_of(record.value) if record.topic == requests else NO_WORK
            one = self._backlog.get((record.topic, record.partition))
            one.add(record.offset, record.timestamp, work)
        for place, position in (await kafka.positions(places)).items():
            self._backlog.get(place).reach(position)

    async def _leave_out_unreadable(self, kafka: LagKafka) -> None:
        """Find the partition by asking one at a time; it is counted by offsets from there on.

        NOTE: what aiokafka took of the others in the same call is lost, and its position is behind.
        """
        for place in self._backlog.with_room():
            kafka.seek(place, self._backlog.get(place).read_to)
        for place in self._backlog.behind():
            try:
                await self._read_some(kafka, [place], wait_ms=ALONE_POLL_MS)
            except UnreadableError:
                _log.warning("lag: a record cannot be read", topic=place[0], partition=place[1])
                self._backlog.get(place).is_unreadable = True

    def _lag(self, offsets: dict[Place, Offsets]) -> Lag:
        now_ms = time.time_ns() // 1_000_000
        figures = self._backlog.figures(self._lengths.expected_tokens, now_ms)
        requests = self._settings.topics.requests
        partitions = tuple(
            PartitionLag(
                topic=topic,
                partition=partition,
                records=figures[topic, partition].records,
                seconds=figures[topic, partition].seconds,
                tokens=figures[topic, partition].tokens if topic == requests else 0,
                committed=found.committed,
                start=found.start,
                end=self._backlog.get((topic, partition)).end,
            )
            for (topic, partition), found in sorted(offsets.items())
        )
        return Lag(partitions, time.monotonic())
