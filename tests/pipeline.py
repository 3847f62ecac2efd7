"""A whole pipeline for tests: topics of its own, real worker processes,
a producer and a log reader.
"""

import asyncio
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from headrace.deploy.processes import free_port
from headrace.deploy.topics import ensure_topics
from headrace.schemas.reply import ReplyReader, Seen, event_text
from headrace.schemas.settings import Settings, child_environment
from tests.forked_worker import ForkedWorker

START_TIMEOUT_S = 120.0  # imports alone take a minute on a loaded machine


class WorkerProcess:
    """One `headrace worker`; its log goes to a file that a failing test can show."""

    def __init__(self, settings: Settings, folder: Path, **overrides: Any) -> None:
        self.metrics_port = free_port()
        self.log = folder / f"worker-{self.metrics_port}.log"
        environment = child_environment(
            kafka=settings.kafka,
            redis=settings.redis,
            topic_prefix=settings.topic_prefix,
            group=settings.group,
            model=settings.model,
            dtype=settings.dtype,
            session_timeout_s=settings.session_timeout_s,
            metrics_port=self.metrics_port,
            threads=1,
            **overrides,
        )
        self.process: ForkedWorker | subprocess.Popen[bytes]
        command = self.command()
        if command is None:
            self.log.touch()
            self.process = ForkedWorker(environment, self.log)
            return
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def command(self) -> list[str] | None:
        """What is started, which must end in a `headrace worker`; None: that itself, forked."""
        return None

    async def ready(self) -> "WorkerProcess":
        """Wait until it is in the consumer group."""
        async with asyncio.timeout(START_TIMEOUT_S), httpx.AsyncClient() as client:
            while True:
                if self.process.poll() is not None:
                    raise RuntimeError(
                        f"worker ended with {self.process.returncode}: {self.tail()}"
                    )
                try:
                    answer = await client.get(f"http://127.0.0.1:{self.metrics_port}/readyz")
                except httpx.TransportError:
                    answer = None
                if answer is not None and answer.status_code == 200:
                    return self
                await asyncio.sleep(0.05)

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples over all label values."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{self.metrics_port}/metrics")
        lines = [line for line in answer.text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    async def terminate(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, timeout_s)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@dataclass
class Reply:
    """What a reader that follows contract §3 has of one request, and how it came."""

    reader: ReplyReader = field(default_factory=ReplyReader)
    events: list[dict[str, Any]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    published_by: list[int] = field(default_factory=list)
    """Process id of the worker, for each of `events`."""
    num_dropped: int = 0
    first_seen: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(event_text(event) for event in self.events)

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def failed(self) -> bool:
        return bool(self.last["object"] == "error")

    @property
    def finish_reason(self) -> str:
        return str(self.last["choices"][0]["finish_reason"])

    @property
    def longest_pause_s(self) -> float:
        pairs = zip(self.arrived_s, self.arrived_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    @property
    def token_ids(self) -> list[int]:
        """All generated ids; asked for with `return_token_ids`."""
        return [i for event in self.events for i in event["choices"][0]["token_ids"]]

    @property
    def publishers(self) -> list[int]:
        """The workers that published it, one after the other."""
        return [pid for pid, _ in groupby(self.published_by)]

    def see(self, event: dict[str, Any], pid: int) -> None:
        """Apply the reader's rule; an event that contradicts an earlier one
        or leaves a gap fails.
        """
        number = (event["attempt"], event["sequence_number"])
        stable = {k: v for k, v in event.items() if k not in ("created", "timings", "usage")}
        assert self.first_seen.setdefault(number, stable) == stable, f"{number} has two contents"
        seen = self.reader.see(event)
        assert seen is not Seen.GAP, f"gap before {number}"
        if seen is Seen.OLD:
            self.num_dropped += 1
            return
        if seen is Seen.RESTART:
            self.events.clear()
            self.published_by.clear()
        self.published_by.append(pid)
        self.events.append(event)
        self.arrived_s.append(time.monotonic())


class Pipeline:
    """Producer and reader of one pipeline, with the worker processes that a test starts."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.replies: defaultdict[str, Reply] = defaultdict(Reply)
        self.order: list[str] = []
        self._changed = asyncio.Condition()
        self.workers: list[WorkerProcess] = []
        self.producer = AIOKafkaProducer(**settings.kafka_options())
        self._consumer = AIOKafkaConsumer(**settings.kafka_options(), auto_offset_reset="earliest")

    async def start_worker(self, **overrides: Any) -> WorkerProcess:
        worker = WorkerProcess(self.settings, self.folder, **overrides)
        self.workers.append(worker)
        return await worker.ready()

    async def start_workers(self, count: int) -> list[WorkerProcess]:
        workers = [WorkerProcess(self.settings, self.folder) for _ in range(count)]
        self.workers += workers
        return [await worker.ready() for worker in workers]

    async def ask(
        self, body: dict[str, Any] | bytes | None, *, key: str | bytes | None = None, **record: Any
    ) -> str:
        """Produce a request; returns the id that its answer will have."""
        value = orjson.dumps(body) if isinstance(body, dict) else body
        raw_key = key.encode() if isinstance(key, str) else key
        sent = await self.producer.send_and_wait(
            self.settings.topics.requests, value, key=raw_key, **record
        )
        default_id = f"{sent.topic}-{sent.partition}-{sent.offset}"
        return str(body.get("request_id", default_id)) if isinstance(body, dict) else default_id

    async def control(self, body: dict[str, Any]) -> None:
        key = str(body["session_id"]).encode()
        await self.producer.send_and_wait(self.settings.topics.control, orjson.dumps(body), key=key)

    async def read_for_ever(self) -> None:
        async for record in self._consumer:
            event = orjson.loads(record.value)
            async with self._changed:
                reply = self.replies[event["id"]]
                was_finished = reply.reader.finished
                reply.see(event, _publisher(record.headers))
                if reply.reader.finished and not was_finished:
                    self.order.append(event["id"])
                self._changed.notify_all()

    async def until(self, condition: Any, *, timeout_s: float = 60.0) -> None:
        """Wait until `condition()` holds; asked again after each event."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(condition)

    async def finished(self, request_ids: Iterable[str], *, timeout_s: float = 60.0) -> None:
        wanted = list(request_ids)

        def all_finished() -> bool:
            return all(self.replies[name].reader.finished for name in wanted)

        try:
            await self.until(all_finished, timeout_s=timeout_s)
        except TimeoutError:
            missing = [name for name in wanted if not self.replies[name].reader.finished]
            logs = "\n".join(worker.tail() for worker in self.workers)
            raise AssertionError(f"{len(missing)} unanswered: {missing[:5]}\n{logs}") from None

    async def answer(self, body: dict[str, Any], **more: Any) -> Reply:
        """Ask, and wait for the whole answer."""
        request_id = await self.ask(body, **more)
        await self.finished([request_id])
        return self.replies[request_id]

    async def uncommitted(self) -> dict[int, tuple[int | None, int]]:
        """Request partitions whose committed offset is not their end: (committed, end)."""
        topic = self.settings.topics.requests
        admin = AIOKafkaAdminClient(**self.settings.kafka_options())
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets(self.settings.group)
        finally:
            await admin.close()
        partitions = self._consumer.partitions_for_topic(topic) or await self._partitions(topic)
        places = [TopicPartition(topic, partition) for partition in partitions]
        ends = await self._consumer.end_offsets(places)
        committed = {place: found[place].offset if place in found else None for place in places}
        return {
            place.partition: (committed[place], ends[place])
            for place in places
            if (committed[place] or 0) != ends[place]
        }

    async def _partitions(self, topic: str) -> set[int]:
        return set(await self.producer.partitions_for(topic))

    def worker(self, pid: int) -> WorkerProcess:
        """The one with this process id."""
        (found,) = [worker for worker in self.workers if worker.process.pid == pid]
        return found

    async def all_committed(self, *, timeout_s: float = 15.0) -> None:
        """Wait until nothing is left: committed offsets are end offsets."""
        left: dict[int, tuple[int | None, int]] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while left := await self.uncommitted():  # noqa: ASYNC110 - Kafka has no event
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not committed (committed, end): {left}") from None

    async def start(self) -> None:
        await self.producer.start()
        await self._consumer.start()
        topic = self.settings.topics.responses
        partitions = await self._partitions(topic)
        self._consumer.assign([TopicPartition(topic, partition) for partition in partitions])

    async def stop(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        await self._consumer.stop()
        await self.producer.stop()


def _publisher(headers: Iterable[tuple[str, bytes]]) -> int:
    """Process id in a response record's `headrace-worker`."""
    return int(dict(headers)["headrace-worker"].rpartition(b":")[2])


@asynccontextmanager
async def running_pipeline(
    settings: Settings, folder: Path, *, partitions: int = 4
) -> AsyncIterator[Pipeline]:
    """Topics, producer and reader; workers are the test's to start, and are killed at the end."""
    await ensure_topics(settings, partitions=partitions)
    pipeline = Pipeline(settings, folder)
    await pipeline.start()
    reading = asyncio.create_task(pipeline.read_for_ever())
    try:
        yield pipeline
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await pipeline.stop()
