"""The clients of one worker: Redis, producer, consumer thread, Faust app, and the consumer of gaps.

Each has the methods that the worker's code calls; what needs an answer waits in a `Line`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from headrace.schemas.topics import Topics
from headrace.streams.intake import Intake
from headrace.streams.ledger import Place, Watermark
from headrace.streams.ownership import Lease
from tests.explorer.broker import TOPICS, Sent
from tests.explorer.operations import Line

if TYPE_CHECKING:
    from tests.explorer.worker import SimWorker

Handler = Callable[..., Any]


class SimRedis:
    """What `Scripts` needs of a client."""

    def __init__(self, worker: "SimWorker") -> None:
        self._worker = worker
        self.line = Line()
        self.connection_pool = self
        self.connection_kwargs = {"path": "simulated"}

    def pipeline(self, *, transaction: bool) -> "SimPipeline":
        return SimPipeline(self._worker, self.line)

    async def script_load(self, script: str) -> None:
        self._check()
        self._worker.world.redis.load(script)

    async def set(self, name: str, value: bytes, *, px: int) -> None:
        """The probe; it changes nothing here."""
        self._check()

    def _check(self) -> None:
        world = self._worker.world
        if self._worker.is_dead or not world.redis_is_up:
            raise RedisConnectionError("Redis is away")
        if world.redis_is_full:
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    def aclose(self) -> "asyncio.Future[None]":
        """There is no connection."""
        return _done(self._worker)


class SimPipeline:
    """Script calls that are sent together, and carried out one by one."""

    def __init__(self, worker: "SimWorker", line: Line) -> None:
        self._worker, self._line = worker, line
        self._steps: list[Callable[[], Any]] = []

    async def __aenter__(self) -> "SimPipeline":
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is no connection."""

    def evalsha(self, sha: str, num_keys: int, *keys_and_args: Any) -> None:
        keys, args = list(keys_and_args[:num_keys]), list(keys_and_args[num_keys:])
        world = self._worker.world

        def step() -> Any:
            if world.redis_is_full:
                return OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
            return world.redis.evalsha(sha, keys, args)

        self._steps.append(step)

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        if self._worker.is_dead:
            raise RedisConnectionError("the process is gone")
        return await self._line.ask(self._worker.loop, self._steps)


@dataclass(eq=False, slots=True)
class InFlight:
    """A record that was handed to the producer."""

    sent: Sent
    future: "asyncio.Future[object]"


class SimProducer:
    """Idempotent: in order, each once. What the broker has taken waits for its acknowledgement."""

    def __init__(self, worker: "SimWorker") -> None:
        self._worker = worker
        self.sending: deque[InFlight] = deque()
        self.taken: deque[InFlight] = deque()
        self._refused: set[tuple[str, int]] = set()
        self.client = self
        self.cluster = self

    async def start(self) -> None:
        """The broker is there."""

    async def force_metadata_update(self) -> None:
        """It has all topics."""

    def partitions_for_topic(self, topic: str) -> list[int]:
        return list(range(self._worker.world.broker.num_partitions))

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Any = None,
    ) -> "asyncio.Future[object]":
        future: asyncio.Future[object] = self._worker.loop.create_future()
        if not self._worker.is_dead:
            self.sending.append(InFlight(Sent(topic, partition or 0, key, value), future))
        return future

    async def stop(self) -> None:
        """Waits for what is under way."""
        under_way = [one.future for one in (*self.taken, *self.sending)]
        await asyncio.gather(*under_way, return_exceptions=True)

    def take(self) -> None:
        """The broker takes the next record; behind one that it refused it takes none."""
        record = self.sending[0]
        if (record.sent.topic, record.sent.partition) in self._refused:
            self.refuse()
            return
        self.sending.popleft()
        self._worker.world.broker.take(record.sent)
        self.taken.append(record)

    def acknowledge(self) -> None:
        """The worker learns of all that the broker has taken."""
        while self.taken:
            future = self.taken.popleft().future
            if not future.done():
                future.set_result(None)

    def refuse(self) -> None:
        """The next record is refused for good; the numbers of those behind it are out of order."""
        record = self.sending.popleft()
        self._refused.add((record.sent.topic, record.sent.partition))
        if not record.future.done():
            record.future.set_exception(KafkaError("refused"))


class SimConsumerThread:
    """Offsets and commits. A commit counts if the group takes it from this member then."""

    def __init__(self, worker: "SimWorker") -> None:
        self._worker = worker
        self.line = Line()

    async def commit_watermarks(self, watermarks: Mapping[Place, Watermark]) -> set[Place]:
        broker, group = self._worker.world.broker, self._worker.world.group
        due = {place: at for place, at in watermarks.items() if place in self._worker.places}
        generation = group.generation_of(self._worker)

        def step() -> set[Place]:
            if not group.accepts(self._worker, generation):
                return set()
            for place, watermark in due.items():
                broker.commit(place, watermark)
            return set(due)

        (accepted,) = await self.line.ask(self._worker.loop, [step])
        return set(accepted)

    async def begin_watermarks(self, places: list[Place]) -> dict[Place, Watermark]:
        known = self._worker.world.broker.watermarks
        step = lambda: {place: known.get(place, Watermark(0)) for place in places}  # noqa: E731
        (found,) = await self.line.ask(self._worker.loop, [step])
        return dict(found)

    async def end_offsets(self, places: list[Place]) -> dict[Place, int]:
        broker = self._worker.world.broker
        step = lambda: {place: broker.end(place) for place in places}  # noqa: E731
        (found,) = await self.line.ask(self._worker.loop, [step])
        return dict(found)

    async def leave(self) -> None:
        """The group is told at once."""
        if not self._worker.is_dead:
            self._worker.leave_group()


class Signal:
    """Whom Faust calls before and after a rebalance."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []

    def connect(self, handler: Handler) -> None:
        self._handlers.append(handler)

    async def send(self, *arguments: object) -> None:
        for handler in self._handlers:
            await handler(self, *arguments)


class SimApp:
    """What `Serving` needs of the Faust app; its agents take records one after the other."""

    def __init__(self, worker: "SimWorker", lease: Lease) -> None:
        self._worker, self.lease = worker, lease
        self.on_partitions_assigned, self.on_partitions_revoked = Signal(), Signal()
        self.in_worker = False
        self.crash_reason: BaseException | None = None
        self.consumer_thread = SimConsumerThread(worker)
        self.consumer = self
        self.queues: dict[str, deque[Any]] = {}
        self._has_more = asyncio.Event()
        self._stopped = asyncio.Event()
        self._agents: list[asyncio.Task[None]] = []
        self._intake: Intake | None = None

    def take_in(self, topics: Topics, intake: Intake) -> None:
        self._intake = intake
        self.queues = {topics.requests: deque(), topics.control: deque()}

    async def start(self) -> None:
        for topic in self.queues:
            self._agents.append(asyncio.create_task(self._take_all(topic)))
        self._worker.world.group.join(self._worker)

    async def _take_all(self, topic: str) -> None:
        assert self._intake is not None
        queue = self.queues[topic]
        while True:
            while queue:
                record, now_s = queue.popleft(), self._worker.monotonic_s()
                if topic == TOPICS.requests:
                    await self._intake.take_request(record, now_s)
                else:
                    self._intake.take_control(record, now_s)
            self._has_more.clear()
            await self._has_more.wait()

    def feed(self, record: Any) -> None:
        """A fetched record, for its agent."""
        self.queues[record.topic].append(record)
        self._has_more.set()

    async def seek(self, place: Any, offset: int) -> None:
        self._worker.positions[Place(place.topic, place.partition)] = offset

    async def wait_until_stopped(self) -> None:
        await self._stopped.wait()

    def stop(self) -> "asyncio.Future[None]":
        for agent in self._agents:
            agent.cancel()
        self._stopped.set()
        return _done(self._worker)


class LookingConsumer:
    """A consumer without a group, which looks into gaps; it is answered at once."""

    def __init__(self, worker: "SimWorker") -> None:
        self._broker = worker.world.broker
        self._place, self._position = Place("", 0), 0

    async def start(self) -> None:
        """The broker is there."""

    async def stop(self) -> None:
        """There is no connection."""

    def assign(self, partitions: list[Any]) -> None:
        (one,) = partitions
        self._place = Place(one.topic, one.partition)

    def seek(self, partition: Any, offset: int) -> None:
        self._position = offset

    async def getmany(self, partition: Any, *, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        log = self._broker.logs[self._place]
        while self._position < len(log):
            record = log[self._position]
            self._position += 1
            if record is not None:
                return {partition: [record]}
        return {}

    async def position(self, partition: Any) -> int:
        return self._position


def _done(worker: "SimWorker") -> "asyncio.Future[None]":
    """NOTE: no coroutine, for `Serving.close` leaves those behind that it does not come to."""
    future: asyncio.Future[None] = worker.loop.create_future()
    future.set_result(None)
    return future
