"""The clock of a chaos run stands while a fault cannot strike."""

import asyncio

from tests.chaos.clock import Clock


async def test_it_stands_until_all_who_hold_it_let_go() -> None:
    """Two hold it, one after the other."""
    clock = Clock()
    with clock.held_for("first"), clock.held_for("second"):
        stood_s = clock.now_s
        clock.go_on("first")
        await asyncio.sleep(0.01)
        assert clock.now_s == stood_s
        clock.go_on("second")
        await asyncio.sleep(0.01)
        assert clock.now_s > stood_s
    assert clock.now_s > stood_s


async def test_a_moment_of_the_plan_comes_later_when_it_stood() -> None:
    """It is waited for, not for the time that it would have been."""
    clock = Clock()
    waiting = asyncio.ensure_future(clock.until(0.02))
    with clock.held_for("fault"):
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    await asyncio.wait_for(waiting, timeout=5)
