"""The servers of a run: a Kafka, a Valkey behind a proxy, a model folder, all its own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings
from tests.chaos.proxy import RedisProxy
from tests.tiny_model import make_tiny_model

PARTITIONS = 6
MAX_MEMORY_MB = 256
NUM_LAYERS = 8
WINDOW_TOKENS = 8192
ADMIN_TIMEOUT_S = 5.0


class Stack:
    """Kafka, Valkey and proxy, running. The pids may be stopped by signals."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        valkey: EmbeddedValkey,
        proxy: RedisProxy,
        settings: Settings,
    ) -> None:
        self.kafka, self.valkey, self.proxy, self.settings = kafka, valkey, proxy, settings
        self.kafka_lock, self.redis_lock = asyncio.Lock(), asyncio.Lock()

    @property
    def model_dir(self) -> Path:
        return Path(self.settings.model)

    async def admin(self, call: Callable[["Redis"], Awaitable[Any]]) -> Any:
        """Ask Valkey itself, past the proxy. Raises: RedisError, TimeoutError."""
        client = Redis.from_url(self.valkey.url, socket_timeout=ADMIN_TIMEOUT_S)
        try:
            return await call(client)
        finally:
            await client.aclose()

    async def redis_bytes(self) -> int:
        """Memory that Valkey uses now; 0 while it does not answer."""
        try:
            async with asyncio.timeout(1.0):
                about = await self.admin(lambda client: client.info("memory"))
        except (RedisError, OSError, TimeoutError):
            return 0
        return int(about["used_memory"])

    async def limit_redis(self, *, max_bytes: int, policy: str) -> None:
        """Change what Valkey may use, and what it does when that is full."""

        async def change(client: "Redis") -> None:
            await client.config_set("maxmemory-policy", policy)
            await client.config_set("maxmemory", max_bytes)

        await self.admin(change)

    async def unlimit_redis(self) -> None:
        """As it was at first."""
        await self.limit_redis(max_bytes=MAX_MEMORY_MB * 2**20, policy="volatile-ttl")


def send_signal(pid: int | None, number: signal.Signals) -> None:
    """To a server that runs."""
    assert pid is not None, "the server is not running"
    os.kill(pid, number)


@asynccontextmanager
async def running_stack(folder: Path) -> AsyncIterator[Stack]:
    """Start all, and stop all at the end; data and logs stay in `folder`."""
    kafka = EmbeddedKafka(folder / "kafka")
    valkey = EmbeddedValkey(folder / "valkey", maxmemory_mb=MAX_MEMORY_MB)
    try:
        await asyncio.to_thread(kafka.start)
        await asyncio.to_thread(valkey.start)
        model = await asyncio.to_thread(_model, folder / "model")
        async with RedisProxy("127.0.0.1", valkey.port).listening() as proxy:
            prefix = f"chaos{uuid4().hex[:8]}"
            settings = Settings(
                kafka=kafka.bootstrap,
                redis=f"redis://127.0.0.1:{proxy.port}/0",
                topic_prefix=prefix,
                group=prefix,
                model=str(model),
                dtype="float32",
            )
            await ensure_topics(settings, partitions=PARTITIONS)
            yield Stack(kafka, valkey, proxy, settings)
    finally:
        await asyncio.to_thread(valkey.kill)
        await asyncio.to_thread(kafka.kill)


def _model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return make_tiny_model(folder, max_position_embeddings=WINDOW_TOKENS, num_layers=NUM_LAYERS)
