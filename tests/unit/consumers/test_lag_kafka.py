"""What aiokafka's clients get wrong, and the lag service has to see through."""

from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaError,
)

from headrace.consumers.lag_kafka import LagKafka, Offsets
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

PARTS = [TopicPartition("requests", 0), TopicPartition("requests", 1)]


class ScriptedAdmin:
    """Answers about a group's offsets in this order; `coordinators` are those that were asked."""

    def __init__(self, *answers: KafkaError | dict[Any, int]) -> None:
        self._answers: Iterator[KafkaError | dict[Any, int]] = iter(answers)
        self._num_lookups = 0
        self.coordinators: list[int] = []

    async def find_coordinator(self, _group: str) -> int:
        self._num_lookups += 1
        return self._num_lookups

    async def list_consumer_group_offsets(
        self, _group: str, coordinator: int, _wanted: list[Any]
    ) -> dict[Any, OffsetAndMetadata]:
        self.coordinators.append(coordinator)
        answer = next(self._answers)
        if isinstance(answer, KafkaError):
            raise answer
        return {part: OffsetAndMetadata(offset, "") for part, offset in answer.items()}


class StandingLogs:
    """A consumer of partitions that hold offsets 10 to 19."""

    async def beginning_offsets(self, parts: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(parts, 10)

    async def end_offsets(self, parts: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(parts, 20)


def _kafka(admin: ScriptedAdmin) -> LagKafka:
    return LagKafka(Settings(), admin, StandingLogs())


async def test_a_group_without_an_offset_has_none() -> None:
    """Kafka says -1, which is no offset (cases K1)."""
    found = await _kafka(ScriptedAdmin({PARTS[0]: -1, PARTS[1]: 12})).offsets(PARTS)
    assert found == {PARTS[0]: Offsets(None, 10, 20), PARTS[1]: Offsets(12, 10, 20)}


@pytest.mark.parametrize(
    "answer", [{}, GroupCoordinatorNotAvailableError()], ids=["empty", "error"]
)
async def test_an_answer_without_offsets_is_no_group_without_offsets(
    answer: dict[Any, int] | KafkaError,
) -> None:
    """While the coordinator moves aiokafka gives an answer with no partition in it. Taken at its
    word, everything in the log would count as lag.
    """
    admin = ScriptedAdmin(answer, dict.fromkeys(PARTS, 15))
    found = await _kafka(admin).offsets(PARTS)
    assert [one.committed for one in found.values()] == [15, 15]
    assert admin.coordinators == [1, 2]


async def test_a_group_that_may_not_be_read_is_said_at_once() -> None:
    """It would be no use to ask again."""
    admin = ScriptedAdmin(GroupAuthorizationFailedError("headrace"))
    with pytest.raises(UnavailableError, match="committed offsets"):
        await _kafka(admin).offsets(PARTS)
