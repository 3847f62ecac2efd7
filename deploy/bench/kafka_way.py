"""Requests through Kafka: one producer and one reader for all of a run's requests.

An open request costs a task and a future, so that thousands may be open.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import structlog

from headrace.consumers.live_reader import LiveReader
from headrace.consumers.log_event import LogEvent
from headrace.deploy.bench.exchange import Exchange
from headrace.deploy.bench.way import Observer
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.errors import HeadraceError, UnavailableError
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import OwnedTask

START_TIMEOUT_S = 20.0
CANCEL_TIMEOUT_S = 5.0
_log = structlog.get_logger(__name__)

MAX_CLOSED = 10_000
"""Answers whose late repeats are still compared; the oldest is forgotten first."""


class KafkaWay:
    """See `Way`. Delivery: each request is written once; nothing is sent again."""

    def __init__(self, settings: Settings, *, tenant: str) -> None:
        self._settings, self._tenant = settings, tenant
        self._producer = RequestProducer(settings, source="headrace/bench")
        self._reader = LiveReader(settings, self._take)
        self._reading = OwnedTask("bench.read")
        self._observer: Observer | None = None
        self._open: dict[str, tuple[Exchange, asyncio.Future[None]]] = {}
        self._closed: OrderedDict[str, Exchange] = OrderedDict()

    async def start(self, observer: Observer) -> None:
        """Connect, and begin to read at the log's end. Raises: UnavailableError."""
        self._observer = observer
        await self._producer.start()
        self._reading.start(self._reader.run())
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._reader.started.wait()
        except TimeoutError as problem:
            topic = self._settings.topics.responses
            raise UnavailableError(f"Kafka (topic {topic})", START_TIMEOUT_S) from problem

    async def stop(self) -> None:
        """See `Way`. Raises: what ended the reading before, if anything did."""
        try:
            await self._reading.stop()
        finally:
            await self._producer.stop()

    async def ask(self, exchange: Exchange, body: dict[str, Any]) -> None:
        """See `Way`. The reader knows of the request before it is written."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[exchange.request_id] = (exchange, done)
        try:
            await self._producer.submit(
                {**body, "request_id": exchange.request_id},
                tenant=self._tenant,
                session_id=exchange.turn.session.session_id,
            )
            await done
        finally:
            del self._open[exchange.request_id]
            self._closed[exchange.request_id] = exchange
            if len(self._closed) > MAX_CLOSED:
                self._closed.popitem(last=False)

    async def cancel(self, exchanges: Sequence[Exchange]) -> bool:
        """By control records, for 5 s at most. What is not cancelled by then runs to its end."""
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self._cancel_all(exchanges)
        except TimeoutError:
            return False
        return True

    async def _cancel_all(self, exchanges: Sequence[Exchange]) -> None:
        """NOTE: what cannot be cancelled now runs on to its end; that is costly, never wrong."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for exchange in exchanges:
                    tasks.create_task(self._cancel(exchange))
        except* HeadraceError as problems:
            _log.warning("bench.not_cancelled", reason=str(problems.exceptions[0]))

    async def _cancel(self, exchange: Exchange) -> None:
        session_id = exchange.turn.session.session_id
        await self._producer.cancel(exchange.request_id, session_id=session_id, tenant=self._tenant)

    def _take(self, found: LogEvent) -> None:
        if found.tenant != self._tenant or self._observer is None:
            return
        if known := self._open.get(found.request_id):
            exchange, done = known
            self._observer.saw(exchange, found.event)
            if not exchange.is_open and not done.done():
                done.set_result(None)
        elif closed := self._closed.get(found.request_id):
            self._observer.saw(closed, found.event)
