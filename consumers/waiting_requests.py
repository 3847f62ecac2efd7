"""Whether a request that has no event yet is waiting for a worker, or was never sent.

What waits stands behind the group's committed offsets, so only that is read, once for all who ask,
and its ids are remembered until they are committed. Owns one connection, from the first question
on. Knows nothing of events: whoever is told no has to look whether some came meanwhile.
"""

import asyncio
import time
from collections import Counter, deque

from headrace.consumers.kafka_reader import as_record
from headrace.consumers.lag_backlog import Place, floor_of
from headrace.consumers.lag_kafka import LagKafka, Offsets, OffsetsGoneError, UnreadableError
from headrace.consumers.log_bounds import Shared
from headrace.schemas.errors import UnavailableError
from headrace.schemas.request import decode_request
from headrace.schemas.settings import Settings

READ_TIMEOUT_S = 5.0
"""For one reading. A longer backlog is read on for the next question; until then every request gets
the benefit of the doubt.
"""

MAX_REMEMBERED = 100_000
"""Ids over all partitions, some 20 MB; with more waiting, each gets the benefit of the doubt."""

STEP_RECORDS = 50
"""Checked in one go, at some 50 µs each: the loop stays free for others in between."""

Name = tuple[str, str]
"""Tenant and request id."""


class WaitingRequests:
    """Reads the backlog when it is asked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kafka: LagKafka | None = None
        self._ids: dict[Place, PartitionIds] = {}
        self._reading = Shared(self._read)

    async def may_be_waiting(self, tenant: str, request_id: str) -> bool:
        """False only where all that waits was read after the call, and it is not among it.

        Raises: UnavailableError. Cancel: safe, it only reads.
        """
        is_all = await self._reading.ask()
        return not is_all or any((tenant, request_id) in one for one in self._ids.values())

    async def close(self) -> None:
        """Close the connection; another question makes another. Safe to call twice."""
        kafka, self._kafka = self._kafka, None
        self._ids.clear()
        if kafka is not None:
            await kafka.close()

    async def _read(self) -> bool:
        """Read on to the end; whether it was reached."""
        try:
            async with asyncio.timeout(2 * READ_TIMEOUT_S):
                return await self._catch_up()
        except (TimeoutError, UnreadableError) as problem:
            await self.close()
            raise UnavailableError("Kafka (requests)", 2 * READ_TIMEOUT_S) from problem
        except UnavailableError:
            await self.close()
            raise

    async def _catch_up(self) -> bool:
        if self._kafka is None:
            self._kafka = await LagKafka.open(self._settings)
        kafka = self._kafka
        offsets = await kafka.offsets(await kafka.places((self._settings.topics.requests,)))
        self._move(kafka, offsets)
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        while behind := [it for it, one in self._ids.items() if one.read_to < offsets[it].end]:
            full = sum(len(one) for one in self._ids.values()) >= MAX_REMEMBERED
            if full or time.monotonic() > deadline_s:
                return False
            await self._read_some(kafka, behind)
        kafka.fetch_only(())
        return True

    def _move(self, kafka: LagKafka, offsets: dict[Place, Offsets]) -> None:
        """Forget what is committed; a group or a log that went back is read anew from there."""
        if kafka.followed != set(offsets):
            self._ids = {
                place: PartitionIds(floor_of(found.committed, found.start, found.end))
                for place, found in offsets.items()
            }
            kafka.follow({place: one.read_to for place, one in self._ids.items()})
        for place, found in offsets.items():
            one = self._ids[place]
            one.move(floor_of(found.committed, found.start, found.end), found.end)
            kafka.seek(place, one.read_to)  # a reading that was cancelled took more than it noted

    async def _read_some(self, kafka: LagKafka, places: list[Place]) -> None:
        kafka.fetch_only(places)
        try:
            records = await kafka.poll(places)
        except OffsetsGoneError as problem:
            raise UnavailableError("Kafka (requests)", READ_TIMEOUT_S, "was cut") from problem
        for number, record in enumerate(records):
            if number % STEP_RECORDS == 0:
                await asyncio.sleep(0)
            found = decode_request(as_record(record)) if record.value is not None else None
            name = (found.tenant, found.request_id) if found is not None else None
            self._ids[record.topic, record.partition].add(record.offset, name)
        for place, position in (await kafka.positions(places)).items():
            self._ids[place].reach(position)


class PartitionIds:
    """The ids in [floor, read_to) of one partition. Sans I/O."""

    def __init__(self, floor: int) -> None:
        self.read_to = floor
        self._floor = floor
        self._records: deque[tuple[int, Name]] = deque()
        self._names: Counter[Name] = Counter()

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def move(self, floor: int, end: int) -> None:
        """Note where the group and the log are now; reading goes on at `read_to`."""
        if floor < self._floor or end < self.read_to:
            self._records.clear()
            self._names.clear()
            self.read_to = floor
        while self._records and self._records[0][0] < floor:
            self._forget_first()
        self._floor = floor
        self.read_to = max(self.read_to, floor)

    def add(self, offset: int, name: Name | None) -> None:
        """Take the next record, which may hold no request; one that was taken changes nothing."""
        if offset < self.read_to:
            return
        self.read_to = offset + 1
        if name is not None:
            self._records.append((offset, name))
            self._names[name] += 1

    def reach(self, offset: int) -> None:
        """Note that no other record stands before `offset`."""
        self.read_to = max(self.read_to, offset)

    def _forget_first(self) -> None:
        _, name = self._records.popleft()
        self._names[name] -= 1
        if not self._names[name]:
            del self._names[name]
