"""Steps 2 and 3: records in, one task each. The ledger takes the offset before anything else.

A full worker stops reading: Faust pauses the partition, the backlog stays in Kafka and shows as
lag.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

import structlog

from headrace.models.kv.write_behind import Turn
from headrace.schemas.control import Cancel, decode_control
from headrace.schemas.errors import RequestError, UnavailableError
from headrace.schemas.headers import header_text
from headrace.schemas.request import DEFAULT_TENANT, Record, decode_request, session_of_key
from headrace.streams.claiming import POLL_INTERVAL_S, Outcome
from headrace.streams.deliveries import Deliveries
from headrace.streams.delivery import Delivery
from headrace.streams.ledger import AckLedger, Place
from headrace.streams.parts import Parts
from headrace.streams.session_queue import SessionKey, SessionQueues

TOKEN_TIMEOUT_S = 10.0
"""A record whose partition is not ours by then is not ours at all."""

log = structlog.get_logger(__name__)


class Intake:
    """Takes request and control records. `tasks` owns every task it starts."""

    def __init__(
        self,
        parts: Parts,
        ledger: AckLedger,
        deliveries: Deliveries,
        tasks: asyncio.TaskGroup,
        *,
        max_open: int,
        for_comparison: bool = False,
    ) -> None:
        """`for_comparison`: see DecodedRequest; else only replayed records are that."""
        self._parts, self._ledger, self._deliveries = parts, ledger, deliveries
        self._tasks, self._for_comparison = tasks, for_comparison
        self._queues = SessionQueues()
        self._admission = asyncio.Semaphore(max_open)
        self._closed = False
        self._taking = False
        self._chores: set[asyncio.Task[None]] = set()  # tombstones and control records

    @property
    def is_taking(self) -> bool:
        """Whether a record is being taken now, or waits because the worker is full."""
        return self._taking

    def close(self) -> None:
        """Drain: take nothing more; what was not taken or not done is not committed either."""
        self._closed = True
        for chore in self._chores:
            chore.cancel()  # it may wait for Redis, longer than a drain may take

    async def take_request(self, record: Record, now_s: float) -> None:
        """Take a record of the request topic; waits while the worker is full."""
        self._taking = True
        try:
            await self._take_request(record, now_s)
        finally:
            self._taking = False

    async def _take_request(self, record: Record, now_s: float) -> None:
        place = Place(record.topic, record.partition)
        if self._closed or not self._ledger.take(place, record.offset, now_s):
            return
        await self._admission.acquire()
        if not await self._owned(record, place) or self._closed:
            self._ledger.give_back(place, record.offset)
            self._admission.release()
            return
        if record.value is None:
            self._take_tombstone(record, place)
        else:
            self._take(record, place)

    async def _owned(self, record: Record, place: Place) -> bool:
        """Whether it is still ours; a partition assigned just now has its token on the way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TOKEN_TIMEOUT_S):
                while self._ledger.is_open(place, record.offset):
                    if self._parts.ownership.owns(record.partition):
                        return True
                    await asyncio.sleep(POLL_INTERVAL_S)
        return False  # a rebalance took the partition away meanwhile

    def _take(self, record: Record, place: Place) -> None:
        decoded = decode_request(record, for_comparison=self._for_comparison)
        if self._deliveries.has_other(decoded):  # the first one counts, also while Redis is away
            self._parts.metrics.duplicates.inc()
            self._ledger.finish(place, record.offset)
            self._admission.release()
            return
        session = (decoded.tenant, decoded.session_id)
        turn = self._queues.enqueue(session)
        delivery = Delivery(self._parts, decoded, turn)
        task = self._tasks.create_task(
            self._deliver(delivery, place), name=f"deliver {decoded.request_id}"
        )
        self._deliveries.add(delivery, task)
        task.add_done_callback(lambda _: self._deliveries.remove(delivery))
        # NOTE: not in a `finally` of the task: one that is cancelled before its first step has none
        task.add_done_callback(lambda _: self._give_back(session, turn))

    def _give_back(self, session: SessionKey, turn: asyncio.Event) -> None:
        self._queues.leave(session, turn)
        self._admission.release()

    async def _deliver(self, delivery: Delivery, place: Place) -> None:
        # NOTE: tasks begin in the order they were made, so claims are sent in the order of reading
        await delivery.claimant.ask()
        outcome = await delivery.run()
        if outcome is Outcome.DELIVERED:
            self._deliveries.remember(delivery.decoded)
        if outcome is Outcome.DUPLICATE:
            self._parts.metrics.duplicates.inc()
        if outcome is not Outcome.NOT_OURS:
            self._ledger.finish(place, delivery.decoded.record.offset)

    def _start_chore(self, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
        chore = self._tasks.create_task(work, name=name)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
        return chore

    def _take_tombstone(self, record: Record, place: Place) -> None:
        session_id = session_of_key(record.key)
        if session_id is None:
            self._parts.metrics.ignored.labels(record.topic).inc()
            self._ledger.finish(place, record.offset)
            self._admission.release()
            return
        tenant = header_text(record.headers, "headrace-tenant") or DEFAULT_TENANT
        session = (tenant, session_id)
        turn = self._queues.enqueue(session)
        work = self._delete_in_turn(record, place, session, turn)
        chore = self._start_chore(work, f"delete {session_id}")
        chore.add_done_callback(lambda _: self._give_back(session, turn))

    async def _delete_in_turn(
        self, record: Record, place: Place, session: SessionKey, turn: asyncio.Event
    ) -> None:
        await turn.wait()
        await self._delete(session, place, record.offset, tombstone=record)

    async def _delete(
        self, session: SessionKey, place: Place, offset: int, *, tombstone: Record | None = None
    ) -> None:
        while self._ledger.is_open(place, offset):
            try:
                await self._delete_kv(session)
                await self._parts.sessions.delete(*session, tombstone=tombstone)
            except UnavailableError:
                await self._parts.scripts.back()
                continue
            self._ledger.finish(place, offset)

    async def _delete_kv(self, session: SessionKey) -> None:
        """Before the conversation, whose tokens say which blocks it has. Raises: UnavailableError.

        Those of a tombstone that is read again are a miss to the turns behind it.
        """
        if self._parts.kv is not None:
            record = await self._parts.sessions.load(*session)
            await self._parts.kv.delete(Turn(*session, token_ids=tuple(record.ids)))

    def take_control(self, record: Record, now_s: float) -> None:
        """Take a record of the control topic; what it asks for here is done at once."""
        place = Place(record.topic, record.partition)
        if self._closed or not self._ledger.take(place, record.offset, now_s):
            return
        try:
            control = decode_control(record.value or b"", record.headers)
        except RequestError as problem:
            log.warning("control record ignored", problem=str(problem), offset=record.offset)
            self._parts.metrics.ignored.labels(record.topic).inc()
            self._ledger.finish(place, record.offset)
            return
        if isinstance(control, Cancel):
            self._deliveries.cancel(
                tenant=control.tenant,
                request_id=control.request_id,
                session_id=control.session_id,
            )
            work = self._cancel(control, place, record.offset)
        else:
            session = (control.tenant, control.session_id)
            work = self._delete(session, place, record.offset)
        self._start_chore(work, f"control {record.partition}-{record.offset}")

    async def _cancel(self, control: Cancel, place: Place, offset: int) -> None:
        """Into the journal: the owner may be another worker, now or after a crash."""
        while self._ledger.is_open(place, offset):
            try:
                await self._parts.journal.cancel(
                    tenant=control.tenant,
                    request_id=control.request_id,
                    session_id=control.session_id,
                )
            except UnavailableError:
                await self._parts.scripts.back()
                continue
            self._ledger.finish(place, offset)
            return
