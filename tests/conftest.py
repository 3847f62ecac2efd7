"""Fixtures that many tests share: the real Kafka and Redis, a unique prefix, a tiny model."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.kept_logging import kept_logging
from tests.services import kafka_service, redis_service

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")  # no example fails because the machine is busy

SESSION_FIXTURES = {"kafka_bootstrap", "redis_url", "tiny_model_dir"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count a test's timeout from its own start, not from the start of the services it needs.

    The first test to ask for Kafka would else pay for the broker's start and, once on a machine,
    its download; those waits are bounded in `deploy`.
    """
    for item in items:
        if SESSION_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            continue
        marker = item.get_closest_marker("timeout")
        limit_s = marker.args if marker else (float(item.config.getini("timeout")),)
        given = marker.kwargs if marker else {}
        item.add_marker(pytest.mark.timeout(*limit_s, **{**given, "func_only": True}), append=False)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that a test runs in this process does not silence the tests after it."""
    with kept_logging():
        yield


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a real Kafka, one for the whole run; use `topic_prefix` in it."""
    with kafka_service(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis or Valkey, one for the whole run; never flush it."""
    with redis_service(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses, for topics, groups and Redis keys alike."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model in Hugging Face format, the same for the whole run."""
    from tests.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"), seed=0)
