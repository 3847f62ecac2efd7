"""What a delivery does with KV state: fetch before prefill, count, keep behind the stored turn."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from headrace.models.kv.write_behind import Turn
from headrace.models.request import FinishReason, KVBlock
from headrace.schemas.request import Record
from headrace.streams.intake import Intake
from headrace.streams.prefix_reuse import KEEP_TOKENS
from headrace.streams.resuming import GIVE_WAY_S
from tests.unit.streams.pipeline import Pipeline, pipeline

BLOCK = KVBlock(b"h" * 16, tuple(range(32)), b"data")


class MemoryTier:
    """Has one block for everybody; a fetch can be held: each, or those of `slow` token ids."""

    def __init__(self) -> None:
        self.fetched: list[tuple[list[int], str]] = []
        self.kept: list[Turn] = []
        self.deleted: list[Turn] = []
        self.num_held = 0
        self.slow: list[int] | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def fetch(self, token_ids: Sequence[int], tenant: str) -> tuple[KVBlock, ...]:
        self.fetched.append((list(token_ids), tenant))
        if self.slow in (None, list(token_ids)):
            await self.open.wait()
        self.num_held += 1
        return (BLOCK,)

    def release(self, num_blocks: int) -> None:
        self.num_held -= num_blocks

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        pass

    def keep(self, turn: Turn) -> None:
        self.kept.append(turn)

    async def delete(self, turn: Turn) -> None:
        self.deleted.append(turn)


@asynccontextmanager
async def with_tier() -> AsyncIterator[tuple[Pipeline, MemoryTier]]:
    """A pipeline whose deliveries have a tier."""
    tier = MemoryTier()
    async with pipeline() as pipe:
        parts = replace(pipe.parts, kv=tier)
        pipe.intake = Intake(parts, pipe.ledger, pipe.deliveries, pipe.tasks, max_open=8)
        yield pipe, tier
        pipe.intake.close()


def value(pipe: Pipeline, name: str, tier: str) -> float | None:
    """A counter's value, in tokens."""
    return pipe.metrics.registry.get_sample_value(f"headrace_{name}_total", {"tier": tier})


async def test_the_engine_gets_what_was_fetched_and_the_turn_is_kept_when_it_is_stored() -> None:
    """Prompt and answer, for the tenant and session of the request."""
    async with with_tier() as (pipe, tier):
        await pipe.send("r1", "hi")
        key = await pipe.started("r1")
        request, _ = pipe.engine.running[key]
        assert request.kv_blocks == (BLOCK,)
        assert tier.fetched == [(list(b"hi"), "default")]
        assert tier.num_held == 1
        pipe.engine.say(key, "a")
        assert tier.num_held == 0
        pipe.engine.say(key, "b", FinishReason.STOP)
        await pipe.finished("r1")
        assert tier.kept[-1] == Turn("default", "s1", tuple(b"hiab"))


async def test_a_growing_answer_is_kept_so_that_another_worker_need_not_compute_it() -> None:
    """Its prompt with the first token, then every KEEP_TOKENS tokens."""
    async with with_tier() as (pipe, tier):
        await pipe.send("r1", "hi", max_tokens=1000)
        key = await pipe.started("r1")
        for _ in range(2 * KEEP_TOKENS + 1):
            pipe.engine.say(key, "a")
        prompt = tuple(b"hi")
        grown = [prompt + tuple(b"a" * num) for num in (0, KEEP_TOKENS, 2 * KEEP_TOKENS)]
        assert [turn.token_ids for turn in tier.kept] == grown


async def lost_in_mid_sentence(pipe: Pipeline) -> Record:
    """Request `r1` after two tokens, when the group has taken it away."""
    record = await pipe.send("r1", "hi", max_tokens=50)
    await pipe.say("r1", "ab")
    await pipe.changes.until(lambda: "publish" in pipe.calls.of("r1"))
    pipe.lose_partitions()
    await pipe.until(lambda: len(pipe.deliveries) == 0)
    return record


async def test_a_new_request_gives_way_to_one_in_mid_sentence() -> None:
    """Whose KV state is still being fetched: it would else take the row, for a whole answer."""
    async with with_tier() as (pipe, tier):
        record = await lost_in_mid_sentence(pipe)
        tier.open.clear()
        tier.slow = list(b"hiab")
        pipe.assign()
        await pipe.take(record)
        await pipe.until(lambda: len(tier.fetched) == 2)
        await pipe.take(replace(pipe.record("r2"), key=b"s2"))
        await pipe.settle()
        tier.open.set()
        await pipe.until(lambda: len(pipe.engine.added) == 3)
        assert [len(one.generated_ids) for one in pipe.engine.added] == [0, 2, 0]


async def test_a_new_request_does_not_give_way_for_ever() -> None:
    """What is in mid-sentence may hang, too."""
    async with with_tier() as (pipe, tier):
        record = await lost_in_mid_sentence(pipe)
        pipe.assign()
        tier.open.clear()
        await pipe.take(record)
        await pipe.until(lambda: len(tier.fetched) == 2)
        began_s = time.monotonic()
        await pipe.take(replace(pipe.record("r2"), key=b"s2"))
        await pipe.until(lambda: len(tier.fetched) == 3)
        assert time.monotonic() - began_s < 2 * GIVE_WAY_S
        tier.open.set()


async def test_an_answer_without_a_session_is_not_kept() -> None:
    """Nobody will ask for it again."""
    async with with_tier() as (pipe, tier):
        await pipe.take(replace(pipe.record("r1"), key=None))
        await pipe.say("r1", "a")
        await pipe.say("r1", "b", finish=True)
        await pipe.finished("r1")
        assert tier.kept == []


async def test_the_lookup_is_counted_in_tokens_at_the_first_token() -> None:
    """Redis is asked for what is not here."""
    async with with_tier() as (pipe, _):
        await pipe.send("r1", "hello")
        await pipe.say("r1", "a")
        await pipe.say("r1", "b", finish=True)
        await pipe.finished("r1")
        assert value(pipe, "prefix_cache_queries", "local") == 5
        assert value(pipe, "prefix_cache_queries", "redis") == 5
        assert value(pipe, "prefix_cache_hits", "redis") == 0


async def test_one_that_is_cancelled_during_the_fetch_never_reaches_the_engine() -> None:
    """It ends with its last event, and holds no memory."""
    async with with_tier() as (pipe, tier):
        tier.open.clear()
        await pipe.send("r1")
        await pipe.until(lambda: tier.fetched)
        pipe.control(action="cancel", request_id="r1", session_id="s1")
        await pipe.settle()
        tier.open.set()
        await pipe.finished("r1")
        assert pipe.engine.running == {}
        await pipe.until(lambda: tier.num_held == 0)


async def test_one_that_is_dropped_during_the_fetch_holds_no_memory() -> None:
    """The partition is another worker's: nothing is counted as fetched."""
    async with with_tier() as (pipe, tier):
        tier.open.clear()
        await pipe.send("r1")
        await pipe.until(lambda: tier.fetched)
        pipe.lose_partitions()
        await pipe.settle()
        assert (tier.num_held, pipe.engine.running) == (0, {})


async def test_while_redis_is_away_it_is_not_asked() -> None:
    """The claim found out already: this request has paid its half second."""
    async with with_tier() as (pipe, tier):
        pipe.redis.available.clear()
        await pipe.send("r1")
        await pipe.started("r1")
        assert tier.fetched == []


async def test_a_failed_turn_is_not_kept() -> None:
    """It leaves nothing."""
    async with with_tier() as (pipe, tier):
        await pipe.send("r1", model="another")
        await pipe.finished("r1")
        assert tier.kept == []


async def test_deleting_a_session_deletes_the_state_of_its_tokens() -> None:
    """By a control record; the conversation says which tokens."""
    async with with_tier() as (pipe, tier):
        await pipe.send("r1", "hi")
        await pipe.say("r1", "a", finish=True)
        await pipe.finished("r1")
        pipe.control(action="delete_session", session_id="s1")
        await pipe.until(lambda: tier.deleted)
        assert tier.deleted == [Turn("default", "s1", tuple(b"hia"))]
