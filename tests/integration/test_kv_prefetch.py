"""Prefetch from a real Redis, and from ones that are slow, silent, absent or talk nonsense."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from headrace.deploy.processes import free_port
from headrace.models.kv import prefetch
from headrace.models.kv.connection import Connection
from headrace.models.kv.metrics import KVMetrics
from headrace.models.kv.tier import RedisTier
from headrace.models.kv.write_behind import Turn
from headrace.models.request import KVBlock
from headrace.schemas.errors import UnavailableError
from headrace.schemas.keys import Keys
from tests.fakes import DelayingProxy, end_server, silent_server
from tests.kv_blocks import BlockEngine, data_of, tokens

pytestmark = pytest.mark.integration

BOUND_S = prefetch.FETCH_TIMEOUT_S + 0.3  # the machine is shared


class Worker:
    """A tier over an engine that computes nothing."""

    def __init__(self, url: str, keys: Keys, engine: BlockEngine | None = None) -> None:
        self.engine = engine or BlockEngine()
        self.registry = CollectorRegistry()
        self.tier = RedisTier(url, keys, self.engine, KVMetrics(self.registry), ttl_s=60)
        self.tier.prefilled(100, 1_000.0)  # a slow model: fetching always pays

    async def write(self, token_ids: list[int], *, tenant: str = "default") -> None:
        """Have a sequence and write it."""
        self.engine.learn(token_ids, tenant)
        await self.tier.drain([Turn(tenant, "s1", tuple(token_ids))], 5.0)

    async def fetch(self, token_ids: list[int], *, tenant: str = "default") -> list[KVBlock]:
        return list(await self.tier.fetch(token_ids, tenant))

    def count(self, name: str, **labels: str) -> float:
        """A counter's value."""
        return self.registry.get_sample_value(f"headrace_kv_redis_{name}_total", labels) or 0.0


@asynccontextmanager
async def worker(url: str, keys: Keys, engine: BlockEngine | None = None) -> AsyncIterator[Worker]:
    made = Worker(url, keys, engine)
    try:
        yield made
    finally:
        made.tier.close()


@asynccontextmanager
async def babbling_server(answer: bytes) -> AsyncIterator[int]:
    """Says the same to everything, and nothing is a closed connection; yields its port."""
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while answer and await reader.read(65536):
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await end_server(server, writers)


@pytest.fixture
def keys(topic_prefix: str) -> Keys:
    """Keys of this test's own."""
    return Keys(topic_prefix)


def assert_own(blocks: list[KVBlock], num_blocks: int) -> None:
    """So many, each with its own content."""
    assert len(blocks) == num_blocks
    assert all(block.data == data_of(block.hash) for block in blocks)


async def test_another_worker_finds_what_one_wrote(redis_url: str, keys: Keys) -> None:
    """All full blocks but those it has; the last token is left to compute."""
    async with worker(redis_url, keys) as writer:
        await writer.write(tokens(8))
        async with worker(redis_url, keys) as cold:
            assert_own(await cold.fetch(tokens(8)), 8)
            assert_own(await cold.fetch(tokens(8, more=0)), 7)
            assert cold.count("blocks", direction="read") == 15
        async with worker(redis_url, keys, BlockEngine(num_local=3)) as warm:
            found = await warm.fetch(tokens(8))
            assert_own(found, 5)
            assert found[0].hash == warm.engine.learn(tokens(8))[3]


@pytest.mark.parametrize(
    ("engine", "tenant"),
    [
        (BlockEngine(fingerprint="fp-2"), "default"),
        (BlockEngine(), "other"),
    ],
    ids=["another model", "another tenant"],
)
async def test_what_others_wrote_is_not_found(
    redis_url: str, keys: Keys, engine: BlockEngine, tenant: str
) -> None:
    """Cases J8 and J10."""
    async with worker(redis_url, keys) as writer, worker(redis_url, keys, engine) as other:
        await writer.write(tokens(3))
        assert await other.fetch(tokens(3), tenant=tenant) == []


async def test_short_and_local_prompts_ask_nobody(keys: Keys) -> None:
    """No full block that is not here: Redis need not even be there."""
    async with worker(f"redis://127.0.0.1:{free_port()}", keys) as short:
        assert await short.fetch(tokens(1, more=0)) == []
        assert short.count("errors", kind="unavailable") == 0


async def test_a_silent_redis_costs_one_request_half_a_second(keys: Keys) -> None:
    """Cases J7: the following ones nothing, until the breaker lets one try again."""
    async with silent_server() as port, worker(f"redis://127.0.0.1:{port}", keys) as waiting:
        started_s = time.monotonic()
        assert await waiting.fetch(tokens(4)) == []
        assert time.monotonic() - started_s < BOUND_S
        started_s = time.monotonic()
        for _ in range(50):
            assert await waiting.fetch(tokens(4)) == []
        assert time.monotonic() - started_s < BOUND_S
        assert waiting.count("errors", kind="unavailable") == 1
        assert waiting.count("skipped", reason="breaker") == 50


async def test_requests_that_wait_for_a_silent_redis_wait_together(keys: Keys) -> None:
    """Twenty at once: half a second for all, not one behind the other."""
    async with silent_server() as port, worker(f"redis://127.0.0.1:{port}", keys) as waiting:
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(waiting.fetch(tokens(4, seed=number)))
        assert time.monotonic() - started_s < BOUND_S


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$-5\r\n",
        b"*1\r\n",
        b"$999999999999\r\nx",
        b"-ERR",
    ],
    ids=["closed", "http", "negative", "array", "endless", "cut"],
)
async def test_nonsense_is_a_miss(keys: Keys, answer: bytes) -> None:
    """Whatever listens there."""

    async with babbling_server(answer) as port, worker(f"redis://127.0.0.1:{port}", keys) as one:
        started_s = time.monotonic()
        assert await one.fetch(tokens(4)) == []
        assert time.monotonic() - started_s < BOUND_S
        assert one.count("errors", kind="unavailable") == 1


async def test_an_absent_redis_is_a_miss(keys: Keys) -> None:
    """Nobody listens: no wait at all."""
    async with worker(f"redis://127.0.0.1:{free_port()}", keys) as alone:
        assert await alone.fetch(tokens(4)) == []


async def test_a_cancelled_prefetch_leaves_nothing_for_the_next(redis_url: str, keys: Keys) -> None:
    """Cases J1: its reply comes late, and the next request gets its own blocks, or a miss."""
    address = urlsplit(redis_url)
    assert address.hostname is not None
    assert address.port is not None
    async with worker(redis_url, keys) as writer:
        await writer.write(tokens(6, seed=1))
        await writer.write(tokens(6, seed=2))
    proxy = DelayingProxy(address.hostname, address.port)
    async with proxy.listening(), worker(f"redis://127.0.0.1:{proxy.port}", keys) as one:
        assert_own(await one.fetch(tokens(6, seed=1)), 6)
        proxy.replies.clear()
        cancelled = asyncio.create_task(one.fetch(tokens(6, seed=1)))
        await proxy.next_request()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        following = asyncio.create_task(one.fetch(tokens(6, seed=2)))
        proxy.replies.set()
        found = await following
        assert_own(found, 6)
        assert found[0].hash == one.engine.learn(tokens(6, seed=2))[0]


async def test_a_late_reply_after_a_timeout_is_nobodys(redis_url: str, keys: Keys) -> None:
    """Cases J1: the connection of a command that was given up is closed."""
    address = urlsplit(redis_url)
    assert address.hostname is not None
    assert address.port is not None
    proxy = DelayingProxy(address.hostname, address.port)
    async with proxy.listening():
        url = f"redis://127.0.0.1:{proxy.port}"
        connection = Connection(url, connect_timeout_s=5)

        async def held(key: str, *, within_s: float) -> list[bool]:
            deadline_s = time.monotonic() + within_s
            return await asyncio.to_thread(
                connection.expire_all, [key], ttl_s=60, deadline_s=deadline_s
            )

        key = keys.kv_block("fp", "format", b"there")
        async with Redis.from_url(redis_url) as client:
            await client.set(key, "x", ex=60)
        assert await held(key, within_s=5) == [True]
        proxy.replies.clear()
        with pytest.raises(UnavailableError):
            await held(key, within_s=0.05)
        proxy.replies.set()
        assert await held("not there", within_s=5) == [False]
        assert proxy.num_connections == 2
        connection.close()


async def test_fetched_state_that_nobody_took_is_bounded(
    redis_url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait for a full engine do not fill the memory."""
    async with worker(redis_url, keys) as writer:
        await writer.write(tokens(6))
        monkeypatch.setattr(prefetch, "MAX_HELD_BYTES", 30_000)  # six blocks and a bit
        assert_own(await writer.fetch(tokens(6)), 6)
        assert await writer.fetch(tokens(6)) == []
        assert writer.count("skipped", reason="memory") == 1
        writer.tier.release(6)
        assert_own(await writer.fetch(tokens(6)), 6)


async def test_where_computing_is_faster_only_a_probe_is_fetched(
    redis_url: str, keys: Keys
) -> None:
    """One block now and then, so that the gate can open again."""
    async with worker(redis_url, keys) as fast:
        await fast.write(tokens(6))
        for _ in range(20):
            fast.tier.prefilled(1_000, 1e-9)
        assert_own(await fast.fetch(tokens(6)), 1)
        assert await fast.fetch(tokens(6)) == []
        assert fast.count("skipped", reason="cost") == 2


async def test_a_deleted_conversation_is_gone_from_redis(redis_url: str, keys: Keys) -> None:
    """And it may be written again afterwards: a new one with the same beginning."""
    turn = Turn("default", "s1", tuple(tokens(4)))
    async with worker(redis_url, keys) as one, Redis.from_url(redis_url) as client:
        await one.write(tokens(4))
        assert len(await client.keys(f"{keys.prefix}:kv:*")) == 4
        await one.tier.delete(turn)
        assert await client.keys(f"{keys.prefix}:kv:*") == []
        await one.write(tokens(4))
        assert_own(await one.fetch(tokens(4)), 4)
