"""Deleting a consumer group: what is waited for, and what is not."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupIdNotFound,
    NonEmptyGroup,
    NotCoordinatorForGroupError,
)

from headrace.deploy import topics
from headrace.deploy.topics import TopicsError, delete_group
from headrace.schemas.settings import load_settings


class ScriptedAdmin:
    """An admin client whose answers are written down: error codes, or an error to raise when it
    looks for the coordinator.
    """

    answers: Iterator[Any]

    def __init__(self, **options: Any) -> None:
        pass

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def find_coordinator(self, group: str) -> int:
        self._answer = next(self.answers)
        if isinstance(self._answer, Exception):
            raise self._answer
        return 1

    async def _send_request(self, request: Any, node_id: int) -> Any:
        return SimpleNamespace(results=[("g", self._answer)])


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedAdmin]:
    """Stands in for aiokafka's."""
    monkeypatch.setattr(topics, "AIOKafkaAdminClient", ScriptedAdmin)
    return ScriptedAdmin


async def test_a_coordinator_that_moves_is_asked_again(admin: type[ScriptedAdmin]) -> None:
    """As after a pause of the broker: it has to load the group first."""
    admin.answers = iter(
        [
            NotCoordinatorForGroupError.errno,
            GroupCoordinatorNotAvailableError(),
            NonEmptyGroup.errno,
            0,
        ]
    )
    await delete_group(load_settings(kafka="k:1"), "g")
    assert list(admin.answers) == []


async def test_a_group_that_is_not_there_is_no_error(admin: type[ScriptedAdmin]) -> None:
    """It is gone, which is what was wanted."""
    admin.answers = iter([GroupIdNotFound.errno])
    await delete_group(load_settings(kafka="k:1"), "g")


async def test_what_kafka_will_not_do_is_said(admin: type[ScriptedAdmin]) -> None:
    """At once: asking again would not help."""
    admin.answers = iter([GroupAuthorizationFailedError.errno])
    with pytest.raises(TopicsError, match="group g was not deleted"):
        await delete_group(load_settings(kafka="k:1"), "g")
