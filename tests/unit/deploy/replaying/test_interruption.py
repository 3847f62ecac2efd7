"""The early end of a shadow: when it is heeded, and what it still waits for."""

import asyncio
import time

import pytest

from headrace.deploy.replaying import interruption as module
from headrace.deploy.replaying.interruption import Interruption


async def test_it_is_heeded_once_and_where_there_is_something_to_report() -> None:
    """Otherwise the work is cancelled."""
    interruption = Interruption()
    assert not interruption.ask()
    assert not interruption.asked
    interruption.can_report = True
    assert interruption.ask()
    assert interruption.asked
    assert not interruption.ask()


async def test_a_pause_ends_when_it_is_asked_for() -> None:
    """Without it, it ends by itself."""
    interruption = Interruption()
    interruption.can_report = True
    await interruption.pause(0.01)
    asyncio.get_running_loop().call_later(0.01, interruption.ask)
    began_s = time.monotonic()
    await interruption.pause(60)
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_block_is_left_after_the_grace(
    is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was asked for before the block or in it."""
    monkeypatch.setattr(module, "MIN_READ_S", 0.01)
    interruption = Interruption(grace_s=0.01)
    interruption.can_report = True
    if is_early:
        interruption.ask()
    else:
        asyncio.get_running_loop().call_later(0.01, interruption.ask)
    async with asyncio.timeout(10), interruption.bounding():
        await asyncio.Event().wait()
    assert interruption.asked


async def test_a_timeout_of_the_block_is_an_error() -> None:
    """It is none of ours."""
    with pytest.raises(TimeoutError):
        async with Interruption().bounding():
            raise TimeoutError
