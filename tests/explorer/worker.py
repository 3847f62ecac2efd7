"""One worker process: the real `Serving` on a loop of its own, with stand-ins around it.

up      runs when it is told to
paused  a stopped process: it does nothing, its clocks go on
dead    killed: what it had on its way may still arrive
ended   it ended by itself: drained, or failed
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from aiokafka.errors import KafkaError

from headrace.models.request import EngineOutput
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from headrace.streams.ledger import Place
from headrace.streams.metrics import WorkerMetrics
from headrace.streams.ownership import Lease
from headrace.streams.serving import Serving, WorkerFailedError
from tests.explorer.broker import TOPICS
from tests.explorer.clients import LookingConsumer, SimApp, SimProducer, SimRedis
from tests.explorer.engine import MODEL, StepwiseEngine
from tests.explorer.sim_loop import BusyError, SimLoop
from tests.explorer.stage import STAGE

if TYPE_CHECKING:
    from tests.explorer.world import World

EPOCH_S = 1_796_000_000.0
MAX_ROUNDS_OF_DEATH = 20


class Life(Enum):
    """What a worker does."""

    UP = "up"
    PAUSED = "paused"
    DEAD = "dead"
    ENDED = "ended"


@cache
def _settings() -> Settings:
    return Settings(model="tiny", kv_to_redis="off")


class CountingMetrics:
    """Counts what is noted, by name; a registry for each worker would cost more than its work."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def __getattr__(self, name: str) -> "_Figure":
        return _Figure(name, self._counts)

    def watch_engine(self, **_: object) -> None:
        """Nobody scrapes."""

    def watch_oldest(self, *_: object) -> None:
        """Nobody scrapes."""

    def count_ignored_of(self, *_: object) -> None:
        """Nobody scrapes."""


class _Figure:
    def __init__(self, name: str, counts: Counter[str]) -> None:
        self._name, self._counts = name, counts

    def labels(self, *values: str) -> "_Figure":
        return _Figure(f"{self._name} {' '.join(values)}", self._counts)

    def inc(self, by: float = 1) -> None:
        self._counts[self._name] += 1

    def observe(self, value: float) -> None:
        """Times are of no account."""


class SimWorker:
    """A process and the machine that it runs on, which keeps its clocks when it is started anew."""

    def __init__(self, world: "World", number: int, machine: int) -> None:
        self.world, self.number, self.machine = world, number, machine
        self.life = Life.UP
        self.is_cut_off = False
        """Whether Kafka cannot be reached from here."""
        self.places: set[Place] = set()
        self.positions: dict[Place, int] = {}
        self.loop = SimLoop(self.monotonic_s)
        self.redis = SimRedis(self)
        self.producer: SimProducer | None = None
        self.app: SimApp | None = None
        self.engine: StepwiseEngine | None = None
        self.model = MODEL
        self.failure: BaseException | None = None
        self._serving: Serving | None = None
        self._lease: Lease | None = None
        self._in_rebalance = False
        self._may_fetch = False
        self._beat_s = world.now_s
        self._drain = self.on_stage(asyncio.Event)
        self._main = self.on_stage(lambda: self.loop.create_task(self._run()))
        self.run()

    # what the stand-ins ask

    def monotonic_s(self) -> float:
        return self.world.now_s + 1_000.0 * (self.machine + 1)

    def wall_s(self) -> float:
        return EPOCH_S + self.world.now_s + self.world.skews_s[self.machine]

    def make_app(self, lease: Lease) -> SimApp:
        self._lease, self.app = lease, SimApp(self, lease)
        return self.app

    def make_engine(self, on_outputs: Callable[[list[EngineOutput]], None]) -> StepwiseEngine:
        self.engine = StepwiseEngine(self.number, self.monotonic_s, on_outputs)
        return self.engine

    def make_producer(self) -> SimProducer:
        self.producer = SimProducer(self)
        return self.producer

    def make_looking_consumer(self) -> LookingConsumer:
        return LookingConsumer(self)

    @property
    def is_dead(self) -> bool:
        return self.life is Life.DEAD

    @property
    def is_up(self) -> bool:
        return self.life is Life.UP

    # its process

    async def _run(self) -> None:
        metrics = cast(WorkerMetrics, CountingMetrics(self.world.counts))
        nothing = cast(Any, None)
        async with asyncio.TaskGroup() as tasks:
            serving = Serving(_settings(), nothing, nothing, metrics, tasks)
            self._serving = serving
            try:
                await serving.start()
                failed = tasks.create_task(serving.failed())
                await self._drain.wait()
                await serving.drain()
                failed.cancel()
            finally:
                if not self.is_dead:
                    await serving.close()

    def on_stage(self, act: Callable[[], Any]) -> Any:
        """Do something as this worker's code."""
        outer, STAGE.worker = STAGE.worker, self
        try:
            return act()
        finally:
            STAGE.worker = outer

    def run(self) -> None:
        """Until it waits for an answer or a time. Paused ones do nothing."""
        if self.life is Life.UP:
            self.on_stage(self.loop.run_until_idle)
            self._note_doubt()
            if self._main.done():
                self._ended()

    def _note_doubt(self) -> None:
        if self._serving is not None:
            reason = self.on_stage(self._serving.not_ready)
            self.world.doubts.redis_failed |= "Redis" in (reason or "")

    def _ended(self) -> None:
        self.life = Life.ENDED
        self.leave_group()
        self._let_go()
        if not self._main.cancelled():
            self.failure = self._main.exception()

    def _let_go(self) -> None:
        self.redis.line.give_up()
        if self.app is not None:
            self.app.consumer_thread.line.give_up()

    def kill(self) -> None:
        """kill -9: nothing of it runs any more; its clean-up reaches nobody."""
        self.life = Life.DEAD
        self._let_go()
        for _ in range(MAX_ROUNDS_OF_DEATH):
            tasks = self.loop.tasks()
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            with suppress(BusyError):  # that is what was found
                self.on_stage(self.loop.run_until_idle)
        self._let_go()
        self.loop.problems.clear()

    def drain(self) -> None:
        """SIGTERM"""
        self._drain.set()

    @property
    def is_draining(self) -> bool:
        return bool(self._drain.is_set())

    def fails(self) -> str | None:
        """What went wrong in a way that nothing in a schedule accounts for."""
        if self.loop.problems:
            return self.loop.problems[0]
        if self.failure is None:
            return None
        # a send was refused, or Redis was away at the start
        meant = (WorkerFailedError, KafkaError, UnavailableError)
        left = [one for one in _leaves(self.failure) if not isinstance(one, meant)]
        return repr(left[0]) if left else None

    # its membership

    def leave_group(self) -> None:
        self.world.group.leave(self)
        self.places, self._may_fetch = set(), False

    @property
    def has_joined_once(self) -> bool:
        return self.app is not None and self.app.in_worker

    def heartbeat(self) -> None:
        """One that is answered at once; it may bring news of a rebalance."""
        self._beat_s = self.world.now_s
        if self._lease is None or not self.is_up or self.is_cut_off:
            return
        if self.world.group.heartbeat(self):
            self._lease.heartbeat_answered(self.monotonic_s())
        elif self.places or self._may_fetch:
            self._lease.lost()
        self.join()

    @property
    def next_beat_s(self) -> float:
        return self._beat_s + 0.3

    def join(self) -> bool:
        """Learn of a rebalance, let go, and join again; False: there is none, or it is busy."""
        app = self.app
        if app is None or not app.in_worker or self._in_rebalance or not self.is_up:
            return False
        if self.is_cut_off or not self.world.group.must_join(self) or self.is_leaving:
            return False
        self._in_rebalance, self._may_fetch = True, False

        async def rejoin() -> None:
            await app.on_partitions_revoked.send(set(self.places))
            self.world.group.join(self)
            self._in_rebalance = False

        self._start(rejoin())
        return True

    def learn(self) -> bool:
        """Learn of an assignment; False: there is none, or it is busy."""
        app, group = self.app, self.world.group
        if app is None or self._in_rebalance or not self.is_up or self.is_cut_off:
            return False
        if not group.has_news(self) or self.is_leaving:
            return False
        self._in_rebalance = True
        partitions = group.tell(self)
        topics = (TOPICS.requests, TOPICS.control)
        self.places = {Place(topic, number) for topic in topics for number in partitions}
        self.positions.clear()
        for queue in app.queues.values():
            queue.clear()
        self._may_fetch = True

        async def assigned() -> None:
            await app.on_partitions_assigned.send(set(self.places))
            self._in_rebalance = False

        self._start(assigned())
        return True

    @property
    def is_leaving(self) -> bool:
        """Whether it has left the group for good."""
        return self.is_draining and self.world.group.member_of(self) is None

    def _start(self, work: Any) -> None:
        self.on_stage(lambda: self.loop.create_task(work))
        self.run()

    # its consumer

    def can_feed(self, place: Place) -> bool:
        if not self._may_fetch or self.is_cut_off or not self.is_up or place not in self.places:
            return False
        return self._position(place) < self.world.broker.end(place)

    def _position(self, place: Place) -> int:
        return self.positions.setdefault(place, self.world.broker.committed(place))

    def feed(self, place: Place) -> None:
        """The agent is handed the next record."""
        position = self._position(place)
        self.positions[place] = position + 1
        record = self.world.broker.logs[place][position]
        if record is not None and self.app is not None:
            self.app.feed(record)
            self.run()


def _leaves(problem: BaseException) -> list[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        return [leaf for inner in problem.exceptions for leaf in _leaves(inner)]
    return [problem]
