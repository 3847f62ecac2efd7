"""A namespace around a block: what its removal must not take with it."""

from typing import cast

import pytest

from headrace.deploy.replaying.namespace import Namespace
from headrace.deploy.replaying.trial import standing
from headrace.schemas.errors import UnavailableError


class StubbornSpace:
    """A namespace that cannot be removed."""

    prefix = "live.replay-1"

    async def create(self, num_partitions: int) -> None:
        pass

    async def remove(self) -> None:
        raise UnavailableError("Kafka", 30.0)


async def test_a_removal_that_fails_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends nothing: the answers are there, and are to be compared."""
    async with standing(cast(Namespace, StubbornSpace()), 1, keep=False):
        pass
    (line,) = capsys.readouterr().err.splitlines()
    assert "live.replay-1 could be removed: " in line


async def test_a_removal_that_fails_hides_no_error() -> None:
    """What went wrong first is what counts."""
    with pytest.raises(LookupError):
        async with standing(cast(Namespace, StubbornSpace()), 1, keep=False):
            raise LookupError
