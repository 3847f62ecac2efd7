"""Fixtures of the tests that run real worker processes."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace.schemas.settings import Settings
from tests.faults import settings_of
from tests.oracle import Oracle, oracle_for
from tests.pipeline import Pipeline, running_pipeline
from tests.tiny_model import make_tiny_model


def _settings(kafka: str, redis: str, model: Path) -> Settings:
    return settings_of(kafka, redis, model, prefix=f"t{uuid4().hex[:12]}")


@pytest.fixture
async def pipeline(
    kafka_bootstrap: str, redis_url: str, tiny_model_dir: Path, tmp_path: Path
) -> AsyncIterator[Pipeline]:
    """A pipeline that nobody else uses: topics, a producer, a reader;
    the test starts the workers.
    """
    settings = _settings(kafka_bootstrap, redis_url, tiny_model_dir)
    async with running_pipeline(settings, tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def slow_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with so many layers, and so large a window, that an answer takes seconds.

    For tests that strike in mid-sentence: the tiny model is done within three flushes.
    """
    folder = tmp_path_factory.mktemp("slow-model")
    return make_tiny_model(folder, max_position_embeddings=4096, num_layers=32)


@pytest.fixture
async def slow_pipeline(
    kafka_bootstrap: str, redis_url: str, slow_model_dir: Path, tmp_path: Path
) -> AsyncIterator[Pipeline]:
    """Like `pipeline`, with `slow_model_dir`."""
    settings = _settings(kafka_bootstrap, redis_url, slow_model_dir)
    async with running_pipeline(settings, tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    kafka_bootstrap: str,
    redis_url: str,
    tiny_model_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Pipeline]:
    """A pipeline with one worker, for a whole module: its tests use session names of their own."""
    settings = _settings(kafka_bootstrap, redis_url, tiny_model_dir)
    async with running_pipeline(settings, tmp_path_factory.mktemp("served")) as running:
        await running.start_worker()
        yield running


@pytest.fixture(scope="session")
def oracle(tiny_model_dir: Path) -> Oracle:
    return oracle_for(tiny_model_dir)
