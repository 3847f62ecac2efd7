"""Write-behind: what is sent, in which order, and what is left out when it cannot keep up."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from headrace.models.kv.gate import CostGate
from headrace.models.kv.known import KnownBlocks
from headrace.models.kv.metrics import KVMetrics
from headrace.models.kv.store import BlockStore
from headrace.models.kv.write_behind import MAX_QUEUED_TURNS, SLICE_BLOCKS, Turn, WriteBehind
from headrace.models.request import KVBlock
from headrace.schemas.errors import UnavailableError
from tests.fakes import Changes
from tests.kv_blocks import FORMAT, BlockEngine, tokens


class MemoryStore(BlockStore):
    """Blocks in a dict; it can be held, be full, or be away."""

    def __init__(self, changes: Changes, loop: asyncio.AbstractEventLoop) -> None:
        self.block_tokens = FORMAT.block_tokens
        self.held: dict[bytes, bytes] = {}
        self.calls: list[str] = []
        self.ttls_s: set[int] = set()
        self.open = threading.Event()
        self.open.set()
        self.refusal = b""
        self.away = False
        self._changes, self._loop = changes, loop

    @property
    def value_bytes(self) -> int:
        return FORMAT.block_bytes

    def put(self, blocks: Sequence[KVBlock], *, ttl_s: int, deadline_s: float) -> list[bytes]:
        self._call(f"put {len(blocks)}")
        self.ttls_s.add(ttl_s)
        if self.refusal:
            return [self.refusal]
        self.held |= {block.hash: bytes(block.data) for block in blocks}
        self._loop.call_soon_threadsafe(self._changes.notify)
        return []

    def refresh(self, hashes: Sequence[bytes], *, ttl_s: int, deadline_s: float) -> list[bool]:
        self._call(f"refresh {len(hashes)}")
        self.ttls_s.add(ttl_s)
        return [one in self.held for one in hashes]

    def delete(self, hashes: Sequence[bytes], *, deadline_s: float) -> None:
        self._call(f"delete {len(hashes)}")
        for one in hashes:
            self.held.pop(one, None)

    def close(self) -> None:
        pass

    def _call(self, what: str) -> None:
        away = self.away  # before a test hears of the call, and lets it come back
        self.calls.append(what)
        self._loop.call_soon_threadsafe(self._changes.notify)
        assert self.open.wait(5)
        if away:
            raise UnavailableError("Redis", 0.5)


class Bench:
    """A writer with an engine and a store in memory."""

    def __init__(self, *, prefill_tokens_per_s: float = 1.0, ttl_s: int = 60) -> None:
        self.changes = Changes()
        self.store = MemoryStore(self.changes, asyncio.get_running_loop())
        self.engine = BlockEngine()
        self.registry = CollectorRegistry()
        self.writer = WriteBehind(
            self.store,
            self.engine,
            CostGate(prefill_tokens_per_s=prefill_tokens_per_s),
            KnownBlocks(),
            KVMetrics(self.registry),
            ttl_s=ttl_s,
        )

    def turn(self, num_blocks: int, *, seed: int = 0, session: str = "s1") -> Turn:
        """A turn whose blocks the engine has."""
        ids = tokens(num_blocks, seed=seed)
        self.engine.learn(ids)
        return Turn("default", session, tuple(ids))

    def count(self, name: str, **labels: str) -> float:
        """A counter's value."""
        return self.registry.get_sample_value(f"headrace_kv_redis_{name}_total", labels) or 0.0

    async def idle(self) -> None:
        """Wait until the writer has nothing to do: a deletion of nothing is behind all else."""
        for _ in range(3):
            await self.writer.delete(self.turn(1, seed=999, session="nobody"))


@asynccontextmanager
async def writing(*, prefill_tokens_per_s: float = 1.0) -> AsyncIterator[Bench]:
    """A writer that runs."""
    bench = Bench(prefill_tokens_per_s=prefill_tokens_per_s)
    task = asyncio.create_task(bench.writer.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.wait([task])
        bench.store.open.set()
        bench.writer.close()


async def test_a_turn_is_written_a_few_blocks_at_a_time() -> None:
    """So the engine is never held up for long, and memory is bounded."""
    async with writing() as bench:
        bench.writer.keep(bench.turn(10))
        await bench.changes.until(lambda: len(bench.store.held) == 10)
        assert [len(one) for one in bench.engine.exports] == [SLICE_BLOCKS, SLICE_BLOCKS, 2]
        await bench.idle()
        assert bench.count("blocks", direction="written") == 10


async def test_the_next_turn_sends_only_what_is_new() -> None:
    """What Redis is known to hold is neither asked for nor exported again."""
    async with writing() as bench:
        bench.writer.keep(bench.turn(3))
        await bench.changes.until(lambda: len(bench.store.held) == 3)
        bench.writer.keep(bench.turn(5))
        await bench.changes.until(lambda: len(bench.store.held) == 5)
        assert bench.store.calls == ["refresh 3", "put 3", "refresh 2", "put 2"]


async def test_blocks_that_redis_holds_already_are_not_sent_again() -> None:
    """Another worker wrote them, or this one long ago: their time to live is renewed."""
    async with writing() as bench:
        turn = bench.turn(3)
        hashes = bench.engine.learn(turn.token_ids)
        bench.store.held = {one: b"" for one in hashes[:2]}
        bench.writer.keep(turn)
        await bench.changes.until(lambda: len(bench.store.held) == 3)
        assert bench.engine.exports == [hashes[2:]]


async def test_blocks_that_the_engine_has_evicted_are_left_out() -> None:
    """They are not believed to be in Redis either."""
    async with writing() as bench:
        turn = bench.turn(3)
        gone = bench.engine.learn(turn.token_ids)[1]
        bench.engine.evicted = {gone}
        bench.writer.keep(turn)
        await bench.changes.until(lambda: len(bench.store.held) == 2)
        bench.engine.evicted = set()
        bench.writer.keep(turn)
        await bench.changes.until(lambda: len(bench.store.held) == 3)


async def test_the_oldest_turn_is_dropped_when_turns_end_too_fast() -> None:
    """A bounded queue, and a counter."""
    async with writing() as bench:
        bench.store.open.clear()
        bench.writer.keep(bench.turn(1, seed=1))
        await bench.changes.until(lambda: bench.store.calls)  # it is being written
        for number in range(MAX_QUEUED_TURNS + 2):
            bench.writer.keep(bench.turn(1, seed=10 + number, session=f"s{number}"))
        assert bench.count("skipped", reason="queue_full") == 2
        bench.store.open.set()
        await bench.changes.until(lambda: len(bench.store.held) == 1 + MAX_QUEUED_TURNS)
        dropped = bench.engine.learn(tokens(1, seed=10))[0]
        assert dropped not in bench.store.held


async def test_a_full_redis_is_counted_and_left_alone_for_a_while() -> None:
    """Cases J2: never fatal, and no storm of refused blocks."""
    async with writing() as bench:
        bench.store.refusal = b"-OOM command not allowed when used memory > 'maxmemory'"
        bench.writer.keep(bench.turn(8))
        await bench.changes.until(lambda: "put 4" in bench.store.calls)
        await bench.idle()
        assert bench.count("errors", kind="refused") == 1
        assert len(bench.engine.exports) == 1
        bench.writer.keep(bench.turn(1, seed=5))
        await bench.idle()
        assert bench.count("skipped", reason="breaker") == 1


async def test_an_absent_redis_does_not_end_the_writer() -> None:
    """The turn is lost to Redis, the next one after the pause is not."""
    async with writing() as bench:
        bench.store.away = True
        bench.writer.keep(bench.turn(2))
        await bench.changes.until(lambda: bench.store.calls)
        bench.store.away = False
        await bench.idle()
        assert bench.count("errors", kind="unavailable") == 1
        assert bench.engine.exports == []


async def test_an_engine_that_cannot_export_does_not_end_the_writer() -> None:
    """Out of memory for the copy, say."""
    async with writing() as bench:
        bench.engine.failure = MemoryError()
        bench.writer.keep(bench.turn(1))
        await bench.engine.exporting.wait()
        await bench.idle()
        bench.engine.failure = None
        bench.writer.keep(bench.turn(1))
        await bench.changes.until(lambda: len(bench.store.held) == 1)
        assert bench.count("errors", kind="export") == 1


async def test_what_nobody_would_fetch_is_not_written() -> None:
    """One turn goes out to measure with, then none for a while."""
    async with writing(prefill_tokens_per_s=1e9) as bench:
        bench.writer.keep(bench.turn(1, seed=1))
        await bench.changes.until(lambda: len(bench.store.held) == 1)
        bench.writer.keep(bench.turn(1, seed=2))
        await bench.idle()
        assert len(bench.store.held) == 1
        assert bench.count("skipped", reason="cost") == 1


async def test_a_deleted_session_is_not_written_afterwards() -> None:
    """Neither what waits nor the rest of what is being written; others are."""
    async with writing() as bench:
        bench.store.open.clear()
        running, waiting = bench.turn(8), bench.turn(2, seed=2)
        other = bench.turn(1, seed=3, session="s2")
        for turn in (running, waiting, other):
            bench.writer.keep(turn)
        await bench.changes.until(lambda: bench.store.calls)
        deleting = asyncio.create_task(bench.writer.delete(running))
        await asyncio.sleep(0)
        bench.store.open.set()
        await deleting
        await bench.changes.until(lambda: bench.store.held)
        assert list(bench.store.held) == bench.engine.learn(other.token_ids)


async def test_a_later_state_of_a_conversation_takes_the_place_of_the_earlier_one() -> None:
    """Many growing answers do not fill the queue: each waits in it once."""
    async with writing() as bench:
        bench.store.open.clear()
        bench.writer.keep(bench.turn(1, seed=1, session="other"))
        await bench.changes.until(lambda: bench.store.calls)  # it is being written
        for num_blocks in (1, 2, 3):
            bench.writer.keep(bench.turn(num_blocks, seed=2))
        bench.store.open.set()
        await bench.changes.until(lambda: len(bench.store.held) == 4)
        assert bench.store.calls == ["refresh 1", "put 1", "refresh 3", "put 3"]


async def test_a_drain_writes_running_turns_first_and_then_the_queue() -> None:
    """The next owner waits for the running ones."""
    bench = Bench()
    bench.writer.keep(bench.turn(1, seed=1))
    await bench.writer.drain([bench.turn(5, seed=2)], budget_s=5)
    assert bench.store.calls == ["refresh 5", "put 4", "put 1", "refresh 1", "put 1"]
    bench.writer.close()


async def test_a_drain_ends_with_its_budget() -> None:
    """A hand-over is not delayed by a store that hangs."""
    bench = Bench()
    bench.store.open.clear()
    await bench.writer.drain([bench.turn(5)], budget_s=0.01)
    assert bench.count("skipped", reason="drain") == 1
    bench.store.open.set()
    bench.writer.close()


@pytest.mark.parametrize(("session_ttl_s", "expected_s"), [(60, 60), (604_800, 21_600)])
async def test_blocks_live_no_longer_than_their_session(
    session_ttl_s: int, expected_s: int
) -> None:
    """And less than journals, which a full Redis must not drop for them."""
    bench = Bench(ttl_s=session_ttl_s)
    await bench.writer.drain([bench.turn(1)], budget_s=5)
    assert bench.store.ttls_s == {expected_s}
    bench.writer.close()
