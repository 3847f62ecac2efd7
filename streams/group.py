"""The worker's membership in the consumer group: what a rebalance takes and gives,
and the commits.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

import structlog
from aiokafka.errors import KafkaError

from headrace.schemas.errors import UnavailableError
from headrace.schemas.topics import Topics
from headrace.streams.deliveries import Deliveries
from headrace.streams.flusher import Flusher
from headrace.streams.journal import Journal
from headrace.streams.kafka import PipelineApp
from headrace.streams.ledger import AckLedger, Place, Watermark
from headrace.streams.ownership import Assignment, Lease, Ownership
from headrace.streams.session_store import SessionStore

COMMIT_INTERVAL_S = 0.5
COMMIT_TIMEOUT_S = 10.0
LAST_COMMIT_TIMEOUT_S = 1.0
OFFSETS_TIMEOUT_S = 2.0

log = structlog.get_logger(__name__)


class GroupMember:
    """Handlers of Faust's rebalance signals, and the commit timer."""

    def __init__(
        self,
        app: PipelineApp,
        topics: Topics,
        journal: Journal,
        ledger: AckLedger,
        deliveries: Deliveries,
        ownership: Ownership,
        lease: Lease,
        sessions: SessionStore,
        flusher: Flusher,
    ) -> None:
        self._app, self._topics, self._journal = app, topics, journal
        self._ledger, self._deliveries = ledger, deliveries
        self._ownership, self._lease, self._sessions = ownership, lease, sessions
        self._flusher = flusher
        self.joined = False
        self._stored_tokens: dict[Place, int] = {}
        self._begun: set[Place] = set()
        """Those whose committed offset is known since the assignment: only they are committed."""
        self._settled = True
        """False while an assignment is being taken over: what is due is of an earlier one."""
        self.places: set[Place] = set()
        """The partitions of both topics that the group has given to this process."""

    async def on_revoked(self, *_: object, **__: object) -> None:
        """Before every rebalance, for all partitions: most of them stay, so running rows go on.

        Whoever gets the others finds the journals and the offsets as they are now.
        """
        self._lease.suspend()
        self._flusher.hurry()
        with suppress(TimeoutError):  # the group waits for this worker
            async with asyncio.timeout(LAST_COMMIT_TIMEOUT_S):
                await self.commit()

    async def on_assigned(self, _: object, assigned: Iterable[Place], **__: object) -> None:
        """own: stop what is lost, take a fencing token for what is ours."""
        places = {Place(tp.topic, tp.partition) for tp in assigned}
        partitions = sorted(p.partition for p in places if p.topic == self._topics.requests)
        self.places = places
        self._begun, self._stored_tokens = set(), {}
        self._settled = False
        self._ownership.keep_only(partitions)
        for place, offset in self._ledger.keep_only(places):
            self._deliveries.drop(place, offset)
        self._sessions.forget_remembered()
        ends, stored_tokens = await asyncio.gather(self._ends(partitions), self._begin(places))
        tokens = await self._tokens(partitions, above=max(stored_tokens.values(), default=0))
        self._ownership.assign(
            Assignment(partition, token, ends.get(partition))
            for partition, token in zip(partitions, tokens, strict=True)
        )
        self._settled = True
        self._lease.resume()
        self.joined = True
        log.info("partitions assigned", requests=partitions)

    async def _tokens(self, partitions: list[int], *, above: int) -> list[int]:
        if not partitions:
            return []
        clock_ms = int(time.time() * 1000)
        least = max(self._ownership.next_token(one, clock_ms, above=above) for one in partitions)
        try:
            return await self._journal.own(partitions, least)
        except UnavailableError:
            return [least] * len(partitions)  # Redis away: the clock alone

    async def _ends(self, partitions: list[int]) -> dict[int, int | None]:
        """Where each partition ended when it was assigned; unknown counts as:
        nothing came since.
        """
        places = [Place(self._topics.requests, partition) for partition in partitions]
        try:
            async with asyncio.timeout(OFFSETS_TIMEOUT_S):
                found = await self._app.consumer_thread.end_offsets(places)
        except (KafkaError, TimeoutError) as problem:
            log.warning("end offsets unknown", problem=repr(problem))
            return {}
        return {place.partition: offset for place, offset in found.items()}

    async def _begin(self, places: Collection[Place]) -> dict[Place, int]:
        """Tell the ledger where the group goes on; without that it lets nothing be committed.

        Returns the fencing tokens that stand there.
        """
        try:
            async with asyncio.timeout(OFFSETS_TIMEOUT_S):
                found = await self._app.consumer_thread.begin_watermarks(list(places))
        except (KafkaError, TimeoutError) as problem:
            log.warning("committed offsets unknown, asked again", problem=repr(problem))
            return {}
        for place, watermark in found.items():
            if place in self.places:
                self._ledger.begin(place, watermark.offset)
                self._begun.add(place)
        return {place: watermark.token for place, watermark in found.items()}

    async def commit_for_ever(self) -> None:
        """commit, on a timer. Cancel: what is not committed is delivered again, and found done."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self) -> bool:
        """commit: the watermark of every partition.

        A refused one is tried again by the next call.
        """
        if not self._settled:
            return False
        unknown = [place for place in self.places if place not in self._begun]
        if unknown:
            await self._begin(unknown)
        due = self._due()
        if not due:
            return True
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                accepted = await self._app.consumer_thread.commit_watermarks(due)
        except TimeoutError:
            log.warning("commit got no answer, it is tried again", partitions=len(due))
            return False
        for place in accepted:
            self._ledger.committed(place, due[place].offset)
            self._stored_tokens[place] = due[place].token
        return len(accepted) == len(due)

    def _due(self) -> dict[Place, Watermark]:
        """Of every partition that got on, or has a token that the group does not know."""
        offsets = self._ledger.watermarks()
        due = {}
        for place in self._begun:
            assignment = self._ownership.get(place.partition)
            is_request = place.topic == self._topics.requests
            token = assignment.token if assignment is not None and is_request else 0
            offset = offsets.get(place, self._ledger.committed_offset(place))
            is_new = place in offsets or token > self._stored_tokens.get(place, 0)
            if offset is not None and is_new:
                due[place] = Watermark(offset, token)
        return due
