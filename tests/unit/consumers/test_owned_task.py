"""The one task of an object that is started and stopped."""

import asyncio

import pytest

from headrace.consumers.owned_task import OwnedTask


async def test_it_runs_from_start_to_stop() -> None:
    """Cancelled and awaited; safe to stop twice, and to start again."""
    task, ended = OwnedTask("t"), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for _ in range(2):
        task.start(work())
        await asyncio.sleep(0)
        assert task.is_running
        await task.stop()
        assert not task.is_running
        assert ended.is_set()
        ended.clear()
    await task.stop()


async def test_it_is_started_once() -> None:
    """A second one would be lost."""
    task = OwnedTask("t")
    task.start(asyncio.sleep(60))
    with pytest.raises(RuntimeError, match="t is started already"):
        task.start(asyncio.sleep(60))
    await task.stop()


async def test_what_ended_it_is_raised_by_stop() -> None:
    """Once."""

    async def fail() -> None:
        raise ValueError("a bug")

    task = OwnedTask("t")
    task.start(fail())
    await asyncio.sleep(0)
    assert not task.is_running
    with pytest.raises(ValueError, match="a bug"):
        await task.stop()
    await task.stop()
