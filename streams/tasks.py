"""Ending tasks for good."""

import asyncio
from collections.abc import Collection

CANCEL_ROUNDS = 10
CANCEL_ROUND_S = 0.5


async def cancel_and_wait(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel until every task has ended, or CANCEL_ROUNDS are over.

    Again and again, because CPython before 3.12 loses a cancellation in `asyncio.wait_for` that
    comes just as the awaited thing ends (python/cpython#86296), and client libraries use it.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(CANCEL_ROUNDS):
        if not left:
            return
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_ROUND_S)
