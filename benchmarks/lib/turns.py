"""The second turn of a conversation, three ways: on the worker that had the first one, on a cold
worker with KV state from Redis, and on a cold worker that computes the history again.

Two engines in one process stand for two workers; they share nothing but Redis.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry

from benchmarks.lib.cpu_time import OthersClock
from benchmarks.lib.headrace_engine import GREEDY, TimedEngine
from benchmarks.lib.workload import PromptMaker
from headrace.models.kv.metrics import KVMetrics
from headrace.models.kv.tier import RedisTier
from headrace.models.kv.write_behind import Turn
from headrace.models.loading import LoadedModel
from headrace.models.request import EngineRequest
from headrace.schemas.keys import Keys

NEW_TURN_TOKENS = 32
KV_POOL_BYTES = 1 << 30
WRITE_BUDGET_S = 30.0
TTL_S = 3600


class Way(StrEnum):
    """Where the KV state of the history comes from."""

    LOCAL = "local"
    REDIS = "redis"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class SecondTurn:
    """One second turn. Units: the first token counts from the moment the turn was there, the
    prefetch included; tokens of the prompt that were not computed, and those of them that came from
    Redis.
    """

    first_token_s: float
    cached_tokens: int
    fetched_tokens: int
    others_s: float


class Worker:
    """An engine and its tier of KV state in Redis."""

    def __init__(self, loaded: LoadedModel, redis_url: str, keys: Keys) -> None:
        self._timed = TimedEngine(
            loaded, max_batch_size=8, prefix_caching=True, kv_pool_bytes=KV_POOL_BYTES
        )
        self._tier = RedisTier(
            redis_url, keys, self._timed.engine, KVMetrics(CollectorRegistry()), ttl_s=TTL_S
        )

    async def turn(self, key: str, token_ids: list[int], *, from_redis: bool) -> SecondTurn:
        """A turn to its first token, with what Redis has if it is `from_redis` and it pays.

        The tenant is the key, so that turns of other keys are cold.
        """
        clock, started_s = OthersClock(os.getpid()), time.monotonic()
        tenant = key
        blocks = await self._tier.fetch(token_ids, tenant) if from_redis else ()
        request = EngineRequest(key, token_ids, 1, sampling=GREEDY, tenant=tenant, kv_blocks=blocks)
        done = await asyncio.to_thread(self._timed.run, [request])
        first_s = done.times_s[0][0]
        self._tier.release(len(blocks))
        computed = len(token_ids) - done.cached_tokens
        self._tier.prefilled(computed, first_s - done.started_s)
        return SecondTurn(
            first_s - started_s, done.cached_tokens, done.fetched_tokens, clock.elapsed_s()
        )

    async def write(self, key: str, token_ids: list[int]) -> None:
        """Bring the KV state of a turn that this worker had to Redis, now."""
        await self._tier.drain([Turn(key, key, tuple(token_ids))], WRITE_BUDGET_S)

    def close(self) -> None:
        """End the engine and the connections."""
        self._tier.close()
        self._timed.engine.stop()


async def second_turn(
    warm: Worker, cold: Worker, maker: PromptMaker, history_tokens: int, *, key: str
) -> dict[Way, SecondTurn]:
    """A conversation of `history_tokens`, and its second turn in the three ways, one after the
    other. Nothing of it was seen before by either worker if `key` is new.
    """
    history = maker.words(history_tokens, seed=key)
    turn = history + maker.words(NEW_TURN_TOKENS, seed=f"{key} second")
    await warm.turn(key, history, from_redis=False)
    await warm.write(key, history)
    return {
        Way.RECOMPUTE: await cold.turn(f"{key} recomputed", turn, from_redis=False),
        Way.REDIS: await cold.turn(key, turn, from_redis=True),
        Way.LOCAL: await warm.turn(key, turn, from_redis=False),
    }
