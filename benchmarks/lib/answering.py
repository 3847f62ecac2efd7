"""Streams under way on real workers, Kafka and Valkey, for what is measured of a reader's pause."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.schemas.settings import Settings
from tests.pipeline import Pipeline, Reply, WorkerProcess, running_pipeline
from tests.tiny_model import make_tiny_model

NUM_PARTITIONS = 12
NUM_LAYERS = 32
"""So that an answer takes some ten seconds: a tiny model would be done before the fault."""

MAX_TOKENS = 4000
EVENTS_BEFORE = 5
TIMEOUT_S = 180.0


class Answering:
    """A pipeline with its services, and groups of streams that are under way."""

    def __init__(self, kafka: EmbeddedKafka, valkey: EmbeddedValkey, pipeline: Pipeline) -> None:
        self.kafka, self.valkey, self.pipeline = kafka, valkey, pipeline
        self._num_asked = 0

    @property
    def alive(self) -> list[WorkerProcess]:
        """Workers that run."""
        return [one for one in self.pipeline.workers if one.process.poll() is None]

    async def ask(self, max_tokens: int = MAX_TOKENS) -> str:
        """One more request in a session of its own; returns its id."""
        self._num_asked += 1
        name = f"r{self._num_asked}"
        body = {
            "request_id": name,
            "messages": [{"role": "user", "content": f"tell me about mills, {name}"}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        return await self.pipeline.ask(body, key=name)

    async def streams(self, count: int) -> list[str]:
        """Ask, and wait until all of them are in mid-sentence."""
        names = [await self.ask() for _ in range(count)]
        await self.until(lambda: all(len(self.reply(n).events) > EVENTS_BEFORE for n in names))
        return names

    def reply(self, name: str) -> Reply:
        return self.pipeline.replies[name]

    def publisher(self, name: str) -> int:
        """Process id of the worker that published its last event."""
        return self.reply(name).published_by[-1]

    async def until(self, condition: object) -> None:
        await self.pipeline.until(condition, timeout_s=TIMEOUT_S)

    async def more_of(self, names: list[str]) -> None:
        """Wait until each has events behind those of now, or its end."""
        before = {name: len(self.reply(name).events) for name in names}
        await self.until(
            lambda: all(
                len(self.reply(n).events) > before[n] + 1 or self.reply(n).reader.finished
                for n in names
            )
        )

    async def end(self, names: list[str]) -> None:
        """Cancel what still runs."""
        for name in names:
            control = {"action": "cancel", "request_id": name, "session_id": name}
            await self.pipeline.control(control)
        await self.pipeline.finished(names, timeout_s=TIMEOUT_S)


@asynccontextmanager
async def answering(
    folder: Path, num_workers: int, *, num_layers: int = NUM_LAYERS
) -> AsyncIterator[Answering]:
    """Services and workers, until the end of the block."""
    kafka, valkey = EmbeddedKafka(folder / "kafka"), EmbeddedValkey(folder / "valkey")
    model = folder / "model"
    model.mkdir()
    make_tiny_model(model, max_position_embeddings=8192, num_layers=num_layers)
    try:
        await asyncio.to_thread(kafka.start)
        await asyncio.to_thread(valkey.start)
        name = f"b{uuid4().hex[:8]}"
        settings = Settings(
            kafka=kafka.bootstrap,
            redis=valkey.url,
            topic_prefix=name,
            group=name,
            model=str(model),
            dtype="float32",
        )
        async with running_pipeline(settings, folder, partitions=NUM_PARTITIONS) as pipeline:
            await pipeline.start_workers(num_workers)
            yield Answering(kafka, valkey, pipeline)
    finally:
        await asyncio.to_thread(kafka.stop)
        await asyncio.to_thread(valkey.stop)
