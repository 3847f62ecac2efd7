"""Run several things until the first of them ends; the others are cancelled and awaited."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class _FirstDone(Exception):
    """Private: one of them is over."""


async def until_first_done(*works: Coroutine[Any, Any, object]) -> None:
    """Run `works` side by side; when one ends or fails, cancel and await the rest.

    Raises: what the first one raised (the first of several).
    Cancel: safe; all are cancelled and awaited, no task is left behind.
    """

    async def run(work: Coroutine[Any, Any, object]) -> None:
        await work
        raise _FirstDone  # a TaskGroup waits for all; this ends it early

    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(run(work), name="gateway.first_done")
    except* _FirstDone:
        pass
    except* Exception as problems:
        raise leaves(problems)[0] from None


def leaves(problems: BaseExceptionGroup[Any]) -> list[BaseException]:
    """The plain exceptions in a group, however deep."""
    found: list[BaseException] = []
    for problem in problems.exceptions:
        found += leaves(problem) if isinstance(problem, BaseExceptionGroup) else [problem]
    return found
