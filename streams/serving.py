"""A worker's parts, wired: start, health, drain. What they do stands in their own files."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import structlog
from aiokafka.errors import KafkaError
from redis.exceptions import RedisError

from headrace.models.batch import StepRunner
from headrace.models.kv.tier import RedisTier
from headrace.models.loading import LoadedModel
from headrace.models.request import EngineOutput
from headrace.schemas.errors import HeadraceError, SettingsError, UnavailableError
from headrace.schemas.settings import Settings
from headrace.streams.agents import connect_agents
from headrace.streams.claiming import POLL_INTERVAL_S
from headrace.streams.deliveries import Deliveries
from headrace.streams.flusher import CANCEL_POLL_INTERVAL_S, Flusher
from headrace.streams.gaps import GapWatcher
from headrace.streams.generation import Generation, Standing
from headrace.streams.group import GroupMember
from headrace.streams.intake import Intake
from headrace.streams.journal import Journal
from headrace.streams.kafka import build_app
from headrace.streams.ledger import AckLedger
from headrace.streams.liveness import Liveness
from headrace.streams.metrics import WorkerMetrics
from headrace.streams.ownership import Lease, Ownership
from headrace.streams.parts import Parts
from headrace.streams.prefix_reuse import turn_of
from headrace.streams.publisher import Publisher
from headrace.streams.redis_scripts import Scripts, connect
from headrace.streams.roster import Roster
from headrace.streams.served import build_engine, served_model
from headrace.streams.session_store import SessionStore
from headrace.streams.tasks import cancel_and_wait
from headrace.streams.tracing import build_tracer

LEAVE_TIMEOUT_S = 2.0

DRAIN_KV_S = 0.5
"""What a hand-over may wait for KV state to reach Redis: 350 MB over 10 Gbit/s with room to spare.
The next owner would take longer to compute what is written then.
"""

log = structlog.get_logger(__name__)


class WorkerFailedError(HeadraceError):
    """Something that no single request caused: the process ends and is replaced."""

    def __init__(self, what: str, cause: BaseException | None = None) -> None:
        super().__init__(what, cause)
        self.what, self.cause = what, cause

    def __str__(self) -> str:
        if self.cause is None:
            return self.what
        known = isinstance(self.cause, HeadraceError)
        return f"{self.what}: {self.cause if known else repr(self.cause)}"


class Serving:
    """Everything between the consumer group and the engine, for one loaded model.

    `tasks` owns every task; a failure of one ends them all.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedModel,
        runner: StepRunner,
        metrics: WorkerMetrics,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._settings, self._tasks, self._metrics = settings, tasks, metrics
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._deliveries = Deliveries()
        self._ledger, self._ownership = AckLedger(), Ownership()
        self._lease = Lease(settings.session_timeout_s)
        self._redis = connect(settings.redis)
        self._scripts = Scripts(self._redis, settings.keys)
        worker_id = uuid4().hex
        self._journal = Journal(
            self._scripts, settings.keys, ttl_s=settings.journal_ttl_s, worker_id=worker_id
        )
        self._roster = Roster(
            self._scripts,
            settings.keys,
            worker_id,
            signs_for_s=settings.session_timeout_s / 2,
            keep_s=settings.journal_ttl_s,
        )
        self._sessions = SessionStore(self._scripts, settings.keys, ttl_s=settings.session_ttl_s)
        worker_name = f"{socket.gethostname()}:{os.getpid()}"
        self._tracer = build_tracer(settings, worker_name)
        self._publisher = Publisher(
            settings,
            worker_name=worker_name,
            on_acknowledged=self._deliveries.on_acknowledged,
            on_failure=lambda cause: self._fail("a send to Kafka failed", cause),
        )
        self._flusher = Flusher(
            self._journal,
            self._scripts,
            self._publisher,
            self._ownership,
            self._lease,
            on_cancel=self._deliveries.on_cancel,
            on_fenced=self._deliveries.on_fenced,
        )
        self._engine = build_engine(
            settings, loaded, runner, on_outputs=self._on_outputs, on_death=self._on_engine_death
        )
        self._kv = self._redis_tier()
        parts = Parts(
            engine=self._engine,
            model=served_model(settings, loaded),
            journal=self._journal,
            scripts=self._scripts,
            sessions=self._sessions,
            flusher=self._flusher,
            publisher=self._publisher,
            ownership=self._ownership,
            lease=self._lease,
            metrics=metrics,
            roster=self._roster,
            isolation=asyncio.Lock(),
            kv=self._kv,
            tracer=self._tracer,
        )
        self._intake = Intake(
            parts,
            self._ledger,
            self._deliveries,
            tasks,
            max_open=settings.max_open_requests,
            for_comparison=settings.answers_apart,
        )
        self._app = build_app(settings, self._lease)
        connect_agents(self._app, settings.topics, self._intake)
        self._member = GroupMember(
            self._app,
            settings.topics,
            self._journal,
            self._ledger,
            self._deliveries,
            self._ownership,
            self._lease,
            self._sessions,
            self._flusher,
        )
        self._gaps = GapWatcher(settings, self._app, self._ledger, self._intake)
        self._liveness = Liveness(self._engine, self._gaps.unread_s)
        self._app.on_partitions_assigned.connect(self._member.on_assigned)
        self._app.on_partitions_revoked.connect(self._member.on_revoked)
        self._handed_over = False
        self._background: list[asyncio.Task[None]] = []
        self._watch_metrics()

    def _redis_tier(self) -> RedisTier | None:
        settings = self._settings
        if settings.kv_to_redis == "off":
            return None
        return RedisTier(
            settings.redis,
            settings.keys,
            self._engine,
            self._metrics.kv,
            ttl_s=settings.session_ttl_s,
        )

    # start

    async def start(self) -> None:
        """Reach Redis and Kafka, then join the group: the model is loaded already.

        Raises: UnavailableError, SettingsError (topics), WorkerFailedError.
        """
        await self._scripts.reach()
        await self._roster.sign_on()
        await self._publisher.start()
        await self._check_topics()
        self._engine.start()
        for work in (
            self._flusher.run(),
            self._scripts.watch(),
            self._roster.stay(),
            self._member.commit_for_ever(),
            self._catch_up(),
            self._gaps.watch(lambda: self._member.places),
        ):
            self._background.append(self._tasks.create_task(work))
        if self._kv is not None:
            self._background.append(self._tasks.create_task(self._kv.run()))
        self._app.in_worker = True
        await self._app.start()
        self._background.append(self._tasks.create_task(self._watch_app()))
        self._watching = self._tasks.create_task(self._liveness.watch(self._fail))
        self._background.append(self._watching)

    async def _check_topics(self) -> None:
        topics = self._settings.topics
        counts = {
            name: await self._publisher.num_partitions(name) for name in topics.co_partitioned
        }
        missing = [name for name, count in counts.items() if not count]
        if not await self._publisher.num_partitions(topics.dlq):
            missing.append(topics.dlq)
        if missing:
            text = f"no topic {', '.join(missing)}: run `headrace topics create`"
            raise SettingsError(text)
        if len(set(counts.values())) > 1:
            text = f"partition counts differ, a session would have no fixed place: {counts}"
            raise SettingsError(text)

    async def failed(self) -> None:
        """Wait until something fails that no single request caused; raises it."""
        await self._failed

    def _fail(self, what: str, cause: BaseException | None = None) -> None:
        if not self._failed.done():
            self._failed.set_exception(WorkerFailedError(what, cause))

    async def _watch_app(self) -> None:
        await self._app.wait_until_stopped()
        self._fail("the consumer stopped", self._app.crash_reason)

    # what the engine's thread and the journal report

    def _on_outputs(self, outputs: list[EngineOutput]) -> None:
        self._loop.call_soon_threadsafe(self._take_outputs, outputs)

    def _take_outputs(self, outputs: list[EngineOutput]) -> None:
        self._metrics.batch_size.observe(len(outputs))
        self._deliveries.on_outputs(outputs)

    def _on_engine_death(self, cause: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._fail, "the engine died", cause)

    async def _catch_up(self) -> None:
        """Generations that wait do not flush, so their journals are asked for a cancel. And turns
        that were answered while Redis was away are stored.
        """
        while True:
            await asyncio.sleep(CANCEL_POLL_INTERVAL_S)
            if not self._scripts.available.is_set():
                continue
            asked = [g for g in self._generations() if g.ending is None]
            try:
                await self._sessions.save_all()
                answers = await self._journal.cancelled(asked) if asked else []
            except UnavailableError:
                continue
            for generation, cancelled in zip(asked, answers, strict=True):
                if cancelled:
                    self._deliveries.on_cancel(generation)

    def _generations(self) -> list[Generation]:
        found = (delivery.generation for delivery in self._deliveries)
        return [g for g in found if g is not None and g.standing is Standing.JOURNALED]

    # health

    def not_alive(self) -> str | None:
        """What is wrong for good, or None; the process ends soon then."""
        return self._liveness.problem(time.monotonic())

    def not_ready(self) -> str | None:
        """Why no request is taken now, or None."""
        if not self._member.joined:
            return "not in the consumer group yet"
        if not self._scripts.available.is_set():
            return "Redis does not answer"
        return self.not_alive()

    def _watch_metrics(self) -> None:
        self._metrics.watch_engine(
            running=lambda: self._engine.num_running,
            waiting=lambda: len(self._deliveries) - self._engine.num_running,
            kv_usage=lambda: self._engine.kv_usage,
        )
        self._metrics.watch_oldest(self._oldest_s)
        topics = self._settings.topics
        self._metrics.count_ignored_of((topics.requests, topics.control))

    def _oldest_s(self) -> dict[int, float]:
        """Of each owned request partition; 0 where nothing is unfinished."""
        now_s, topic = time.monotonic(), self._settings.topics.requests
        owned = {place.partition: 0.0 for place in self._member.places if place.topic == topic}
        return owned | {
            place.partition: now_s - taken_s
            for place, taken_s in self._ledger.oldest_open().items()
            if place.topic == topic
        }

    # drain

    async def drain(self) -> None:
        """Hand over mid-sentence: stop at the step boundary, journal, publish, commit, write KV
        state for DRAIN_KV_S at the most, leave.

        Half of the settings' drain timeout is for that, the rest for closing the clients; what is
        not journaled then is made again elsewhere.
        """
        self._watching.cancel()  # an engine that was told to stop has not died
        self._intake.close()
        self._deliveries.drop_waiting()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s / 2):
                await self._stop_engine()
                await self._flush_everything()
                await self._member.commit()
                await self._write_kv()
        except TimeoutError:
            log.warning("drain timed out: the rest is handed over by the journal")
        await cancel_and_wait([*self._deliveries.tasks, *self._background])
        try:
            await self._roster.leave()
            self._handed_over = True
        except UnavailableError:
            log.warning("Redis is away: the next owners take this worker for one that died")

    async def _stop_engine(self) -> None:
        await asyncio.to_thread(self._engine.stop)
        await asyncio.sleep(0)  # outputs of the last step were queued on this loop before

    async def _write_kv(self) -> None:
        """KV state of the running generations, so that the next owner need not compute it."""
        if self._kv is not None:
            found = (delivery.generation for delivery in self._deliveries)
            running = [turn_of(generation) for generation in found if generation is not None]
            await self._kv.drain(running, DRAIN_KV_S)

    async def _flush_everything(self) -> None:
        while not self._everything_published() or any(d.is_delivered for d in self._deliveries):
            await self._flusher.tick()
            await asyncio.sleep(POLL_INTERVAL_S / 4)

    def _everything_published(self) -> bool:
        return self._flusher.is_idle and all(
            delivery.generation is None
            or delivery.generation.acknowledged == delivery.generation.published
            for delivery in self._deliveries
        )

    async def close(self) -> None:
        """Out of the group first, so that the next owner starts at once; then close the rest.

        Also after a failure, and after a start that did not end. Bounded by LEAVE_TIMEOUT_S each.
        """
        if self._kv is not None:
            self._kv.close()
        parts: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("producer", self._publisher.stop),
            ("Redis", self._redis.aclose),
        ]
        if self._app.in_worker:
            parts.insert(0, ("consumer group", self._app.consumer_thread.leave))
            parts.append(("Faust", self._app.stop))
        if not self._handed_over:
            parts.insert(0, ("roster", self._roster.sign_off))
        if self._tracer is not None:
            parts.append(("traces", self._tracer.close))
        for what, close in parts:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await close()
            except (TimeoutError, KafkaError, RedisError, UnavailableError) as problem:
                log.warning("could not close in order", what=what, problem=repr(problem))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                log.warning("could not close in order", what=what, problem="its thread has ended")
