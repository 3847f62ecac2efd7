"""Tasks that end when they are told to, and leave none behind."""

import asyncio

import pytest

from headrace.schemas.tasks import OwnedTask, finish_despite_cancel, until_first_done


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


async def wait_for_ever(ends: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ends.append("cancelled")


async def test_the_first_that_ends_ends_all() -> None:
    """By itself or by an error, which is raised; nobody is left behind."""
    ends: list[str] = []
    await until_first_done(wait_for_ever(ends), asyncio.sleep(0))
    assert ends == ["cancelled"]

    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await until_first_done(wait_for_ever(ends), fail())
    assert ends == ["cancelled"] * 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("error", [None, LookupError("at that moment")])
@pytest.mark.parametrize("is_cancelled_first", [False, True])
async def test_a_cancellation_is_never_lost(
    error: Exception | None, is_cancelled_first: bool
) -> None:
    """Regression: a TaskGroup raises the error that comes in the same moment, and goes on."""
    ends: list[str] = []

    async def end() -> None:
        await asyncio.sleep(0)
        if is_cancelled_first:
            caller.cancel()
        else:
            asyncio.get_running_loop().call_soon(caller.cancel)
        if error is not None:
            raise error

    caller = asyncio.create_task(until_first_done(wait_for_ever(ends), end()))
    await asyncio.wait({caller}, timeout=5)
    assert caller.cancelled()
    assert ends == ["cancelled"]


async def test_an_error_at_the_end_is_raised() -> None:
    """Of one that was cancelled because another was done."""

    async def fail_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError

    with pytest.raises(LookupError):
        await until_first_done(fail_late(), asyncio.sleep(0))


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
