"""Work that reaches its end, however often its caller is cancelled."""

import asyncio

import pytest

from headrace.consumers.despite_cancel import finish_despite_cancel


@pytest.mark.parametrize("num_cancels", [1, 2, 3])
async def test_the_work_ends_first(num_cancels: int) -> None:
    """A second SIGTERM is no reason to leave half a namespace."""
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(finish_despite_cancel(work()))
    for _ in range(num_cancels):
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_what_the_work_comes_to() -> None:
    """Its result, or its error, also where the caller was cancelled."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    assert await finish_despite_cancel(asyncio.sleep(0, "done")) == "done"
    caller = asyncio.create_task(finish_despite_cancel(fail()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(LookupError):
        await caller


async def test_work_that_is_cancelled_itself() -> None:
    """The caller hears of it."""

    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finish_despite_cancel(give_up())
