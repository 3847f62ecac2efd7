"""The demonstration model through the whole pipeline: the tests that do not use the tiny model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.models.loading import DTypeName
from headrace.models.native.library import has_fast_bfloat16
from headrace.models.store import resolve_model
from headrace.schemas.settings import Settings
from tests.long_answers import LongAnswers
from tests.oracle import Oracle
from tests.pipeline import Pipeline, running_pipeline

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

QUESTIONS = (
    "What is the capital of France?",
    "And of Italy?",
    "Which of the two is larger?",
    "Name a river there.",
    "Does it reach the sea?",
    "Thank you. Say goodbye in French.",
)


@asynccontextmanager
async def pipeline_of(
    dtype: DTypeName, kafka: str, redis: str, folder: Path
) -> AsyncIterator[Pipeline]:
    prefix = f"t{uuid4().hex[:12]}"
    settings = Settings(
        kafka=kafka,
        redis=redis,
        topic_prefix=prefix,
        group=prefix,
        model="smollm2-135m",
        dtype=dtype,
    )
    async with running_pipeline(settings, folder) as running:
        yield running


@pytest.fixture
async def float32(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Pipeline]:
    """As model.generate computes it."""
    async with pipeline_of("float32", kafka_bootstrap, redis_url, tmp_path) as running:
        yield running


@pytest.fixture
async def automatic(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Pipeline]:
    """As a worker runs when nothing is said: in bfloat16 where the processor multiplies it."""
    async with pipeline_of("auto", kafka_bootstrap, redis_url, tmp_path) as running:
        yield running


async def test_a_conversation_of_six_turns_is_the_models_own(float32: Pipeline) -> None:
    """Six appended turns give the tokens of model.generate on the whole conversation
    (fp32, greedy).
    """
    folder = resolve_model("smollm2-135m")
    oracle = Oracle(Path(folder))
    await float32.start_worker()
    messages: list[dict[str, str]] = []
    for turn, question in enumerate(QUESTIONS):
        new = [{"role": "user", "content": question}]
        body = {
            "messages": new,
            "temperature": 0,
            "max_tokens": 24,
            "turn": turn,
            "return_token_ids": True,
        }
        reply = await float32.answer(body, key="s1")
        made = [i for event in reply.events for i in event["choices"][0]["token_ids"]]
        messages += new
        assert made == oracle.generate(oracle.prompt_ids(messages), 24)
        assert reply.text == oracle.text(made)
        messages.append({"role": "assistant", "content": reply.text})
    assert "Paris" in messages[1]["content"]


async def test_killed_in_mid_sentence_another_worker_goes_on_with_the_same_tokens(
    automatic: Pipeline,
) -> None:
    """The tokens so far are prefilled in one chunk there, not one by one: in bfloat16 that makes
    another text, unless every sum is taken in the same order (docs/decisions/004-dtype.md).
    """
    question = [{"role": "user", "content": "Tell me a long story about a mill by a river."}]
    answers = LongAnswers(automatic, question, 300)
    dtype = "bfloat16" if has_fast_bfloat16() else "float32"
    for worker in await automatic.start_workers(2):
        assert f"dtype={dtype}" in worker.tail()
    expected = await answers.undisturbed()
    victim = await answers.worker_in_mid_sentence(await answers.ask("killed"))
    victim.kill()
    await answers.assert_went_on("killed", victim=victim, expected=expected)
