"""Answers through which a fault goes: what must hold of them, and the pause that a reader saw.

One worker stays at it, so unlike `long_answers` nobody takes over.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.schemas.settings import Settings
from tests.long_answers import SAMPLING, LongAnswers
from tests.pipeline import Pipeline, Reply

MESSAGES = [{"role": "user", "content": "tell me about mills"}]


@dataclass(frozen=True)
class Outage:
    """How long a fault lasted, and the longest pause between two events of its answers."""

    lasted_s: float
    pause_s: float

    def __str__(self) -> str:
        return f"away for {self.lasted_s:.1f} s, longest pause {self.pause_s:.1f} s"


@asynccontextmanager
async def own_kafka(folder: Path) -> AsyncIterator[EmbeddedKafka]:
    """A broker that the test may stop."""
    kafka = EmbeddedKafka(folder)
    await asyncio.to_thread(kafka.start)
    try:
        yield kafka
    finally:
        await asyncio.to_thread(kafka.stop)


@asynccontextmanager
async def own_valkey(folder: Path, **options: Any) -> AsyncIterator[EmbeddedValkey]:
    """A Redis that the test may stop."""
    valkey = EmbeddedValkey(folder, **options)
    await asyncio.to_thread(valkey.start)
    try:
        yield valkey
    finally:
        await asyncio.to_thread(valkey.stop)


def settings_of(kafka: str, redis: str, model: Path, prefix: str) -> Settings:
    return Settings(
        kafka=kafka,
        redis=redis,
        topic_prefix=prefix,
        group=prefix,
        model=str(model),
        dtype="float32",
    )


async def through(
    answers: LongAnswers,
    run: str,
    fault: Callable[[], Awaitable[None]],
    *,
    expected: dict[str, Reply],
    num_attempts: int = 1,
) -> Outage:
    """Ask, let `fault` happen in mid-sentence, and check that the readers got what undisturbed
    readers get, from one worker.
    """
    replies = await answers.ask(run)
    worker = await answers.worker_in_mid_sentence(replies)
    began_s = time.monotonic()
    await fault()
    lasted_s = time.monotonic() - began_s
    await answers.pipeline.finished([f"{kind} {run}" for kind in SAMPLING], timeout_s=120)
    assert worker.process.poll() is None, worker.tail()
    for kind, reply in replies.items():
        assert_same(reply, expected[kind])
        attempts = {attempt for attempt, _ in reply.first_seen}
        assert len(attempts) == num_attempts
        assert reply.publishers == [worker.process.pid]
    await answers.pipeline.all_committed()
    return Outage(lasted_s, answers.longest_pause_s(run))


def assert_same(reply: Reply, expected: Reply) -> None:
    """The same tokens, text and end; numbers without a hole."""
    assert reply.token_ids == expected.token_ids
    assert reply.text == expected.text
    assert reply.finish_reason == expected.finish_reason
    numbers = [event["sequence_number"] for event in reply.events]
    assert numbers == list(range(len(numbers)))


async def quick_answer(pipeline: Pipeline, name: str, *, timeout_s: float = 30.0) -> float:
    """Ask for a few tokens; seconds until they were there."""
    body = {"request_id": name, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    began_s = time.monotonic()
    await pipeline.ask(body, key=name)
    await pipeline.finished([name], timeout_s=timeout_s)
    assert pipeline.replies[name].finish_reason in ("length", "stop")
    return time.monotonic() - began_s
