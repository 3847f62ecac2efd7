"""KV state that travels: a conversation goes on at another worker without being computed again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.oracle import Oracle, oracle_for
from tests.pipeline import Pipeline, Reply

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LONG_TEXT = "a headrace is the channel that brings water to the wheel of a mill " * 3


def turn(text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "return_token_ids": True,
        **more,
    }


async def block_keys(client: "Redis", pipeline: Pipeline) -> set[bytes]:
    """Where the pipeline's KV state lies."""
    pattern = f"{pipeline.settings.keys.prefix}:kv:*"
    return {key async for key in client.scan_iter(pattern, count=1000)}


def ids_of(reply: Reply) -> tuple[list[int], list[int]]:
    """Prompt and answer."""
    return reply.events[0]["prompt_token_ids"], reply.token_ids


def cached_tokens(reply: Reply) -> int:
    return int(reply.last["usage"]["prompt_tokens_details"]["cached_tokens"])


async def first_turn_on_a_worker_that_is_stopped(pipeline: Pipeline) -> int:
    """Returns the tokens that the conversation has then."""
    first = await pipeline.start_worker()
    reply = await pipeline.answer(turn(LONG_TEXT, 60), key="s1")
    assert cached_tokens(reply) == 0
    assert await first.terminate() == 0, first.tail()
    return sum(map(len, ids_of(reply)))


async def test_a_second_turn_on_a_cold_worker_uses_what_the_first_worker_computed(
    pipeline: Pipeline, oracle: Oracle
) -> None:
    """Its full blocks come from Redis, and the answer is the model's own."""
    num_tokens = await first_turn_on_a_worker_that_is_stopped(pipeline)
    second = await pipeline.start_worker()
    reply = await pipeline.answer(turn("and then?", 20, turn=1), key="s1")
    prompt_ids, made = ids_of(reply)
    assert made == oracle.generate(prompt_ids, 20)
    assert num_tokens - 64 <= cached_tokens(reply) <= num_tokens
    hits = await second.metric('headrace_prefix_cache_hits_total{tier="redis"}')
    assert hits == cached_tokens(reply)
    third = await pipeline.answer(turn("and then?", 5, turn=2), key="s1")
    assert cached_tokens(third) >= len(prompt_ids) // 32 * 32
    assert await second.metric('headrace_prefix_cache_hits_total{tier="redis"}') == hits


async def test_damaged_state_is_computed_again(
    pipeline: Pipeline, oracle: Oracle, redis_url: str
) -> None:
    """Every stored block is damaged: the same answer, and the damaged ones are gone."""
    await first_turn_on_a_worker_that_is_stopped(pipeline)
    async with Redis.from_url(redis_url) as client:
        damaged = {}
        for key in await block_keys(client, pipeline):
            value = await client.get(key)
            assert isinstance(value, bytes)
            damaged[key] = value[:-1] + bytes([value[-1] ^ 1])
            await client.set(key, damaged[key], keepttl=True)
        assert len(damaged) > 3
        second = await pipeline.start_worker()
        reply = await pipeline.answer(turn("and then?", 20, turn=1), key="s1")
        prompt_ids, made = ids_of(reply)
        assert made == oracle.generate(prompt_ids, 20)
        assert cached_tokens(reply) == 0
        assert await second.metric('headrace_kv_redis_errors_total{kind="corrupt"}') == 1
        assert await second.terminate() == 0
        for key in await block_keys(client, pipeline):
            assert await client.get(key) != damaged.get(key)


async def test_generations_that_are_handed_over_bring_their_state(
    slow_pipeline: Pipeline,
) -> None:
    """Drained in mid-sentence: the next owner goes on from what the first one computed."""
    first = await slow_pipeline.start_worker()
    replies = [slow_pipeline.replies[name] for name in ("r0", "r1", "r2")]
    for name in ("r0", "r1", "r2"):
        body = turn(name + LONG_TEXT, 500, ignore_eos=True, request_id=name)
        await slow_pipeline.ask(body, key=name)
    await slow_pipeline.until(lambda: all(reply.events for reply in replies))
    assert await first.terminate() == 0, first.tail()
    assert not any(reply.reader.finished for reply in replies)
    second = await slow_pipeline.start_worker()
    await slow_pipeline.finished(["r0", "r1", "r2"])
    assert replies[0].publishers == [first.process.pid, second.process.pid]
    prompt_ids, made = ids_of(replies[0])
    oracle = oracle_for(Path(slow_pipeline.settings.model))
    assert made == oracle.choices(prompt_ids, made)
    assert await second.metric('headrace_prefix_cache_hits_total{tier="redis"}') >= 32


async def test_a_deleted_session_leaves_no_state(pipeline: Pipeline, redis_url: str) -> None:
    """Contract §4: conversation and KV state go; other sessions' stay."""
    await pipeline.start_worker()
    async with Redis.from_url(redis_url) as client:
        first = await pipeline.answer(turn(LONG_TEXT, 40), key="s1")
        mine = await written(client, pipeline, first, set())
        second = await pipeline.answer(turn("something else " * 30, 40), key="s2")
        others = await written(client, pipeline, second, mine)
        await pipeline.control({"action": "delete_session", "session_id": "s1"})
        await until_keys(client, pipeline, lambda keys: not keys & mine)
        assert await block_keys(client, pipeline) == others


async def written(
    client: "Redis", pipeline: Pipeline, reply: Reply, before: set[bytes]
) -> set[bytes]:
    """Wait for a turn's blocks; the last token's state was never computed."""
    num_blocks = (sum(map(len, ids_of(reply))) - 1) // 32
    return (
        await until_keys(client, pipeline, lambda keys: len(keys - before) == num_blocks) - before
    )


async def until_keys(
    client: "Redis", pipeline: Pipeline, true: Callable[[set[bytes]], bool]
) -> set[bytes]:
    """Wait until the stored blocks are as wanted: Redis is asked again and again."""
    async with asyncio.timeout(20):
        while not true(keys := await block_keys(client, pipeline)):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    return keys


async def test_off_means_off(pipeline: Pipeline, redis_url: str) -> None:
    """KV_TO_REDIS=off: nothing is written, nothing is asked for."""
    worker = await pipeline.start_worker(kv_to_redis="off")
    await pipeline.answer(turn(LONG_TEXT, 40), key="s1")
    assert await worker.terminate() == 0
    async with Redis.from_url(redis_url) as client:
        assert await block_keys(client, pipeline) == set()
