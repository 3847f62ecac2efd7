"""The demonstration model through the whole pipeline: the one test that does not use
the tiny model.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.models.store import resolve_model
from headrace.schemas.settings import Settings
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


@pytest.fixture
async def pipeline(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Pipeline]:
    prefix = f"t{uuid4().hex[:12]}"
    settings = Settings(
        kafka=kafka_bootstrap,
        redis=redis_url,
        topic_prefix=prefix,
        group=prefix,
        model="smollm2-135m",
        dtype="float32",
    )
    async with running_pipeline(settings, tmp_path) as running:
        yield running


async def test_a_conversation_of_six_turns_is_the_models_own(pipeline: Pipeline) -> None:
    """Six appended turns give the tokens of model.generate on the whole conversation
    (fp32, greedy).
    """
    folder = resolve_model("smollm2-135m")
    oracle = Oracle(Path(folder))
    await pipeline.start_worker()
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
        reply = await pipeline.answer(body, key="s1")
        made = [i for event in reply.events for i in event["choices"][0]["token_ids"]]
        messages += new
        assert made == oracle.generate(oracle.prompt_ids(messages), 24)
        assert reply.text == oracle.text(made)
        messages.append({"role": "assistant", "content": reply.text})
    assert "Paris" in messages[1]["content"]
