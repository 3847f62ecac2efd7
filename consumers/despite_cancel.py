"""Work that must reach its end although its caller is cancelled: short, and bounded by itself."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end even if the caller is cancelled meanwhile, then re-raise.

    Cancel: delayed until `work` is over, however often it is asked for.
    """
    task = asyncio.create_task(work, name="despite-cancel")  # awaited on every path
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            cancelled = problem
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
