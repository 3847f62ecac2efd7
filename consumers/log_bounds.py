"""Where the response log begins and ends now, and where it was at a time: asked once for many.

Owns one consumer that reads nothing, so that an answer does not wait behind a fetch. A thousand
readers that ask at once cost two questions: the one that is under way, and one more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

from headrace.consumers.kafka_reader import (
    bounded,
    close_consumer,
    find_partitions,
    offsets_at,
    open_consumer,
)
from headrace.consumers.range_reader import Span, readable_spans
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

TIME_STEP_MS = 10_000
"""Times are asked for in steps of this: a reader may begin so much too early."""

MAX_TIMES = 1_000
"""Answers kept: an hour and a half of steps, half a MB at 12 partitions."""

FETCH_BYTES = 64 * 1024

T = TypeVar("T")


class Shared(Generic[T]):
    """One question for all who ask at the same time: each gets an answer that was begun after it
    asked.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._num_begun = 0
        self._num_done = 0
        self._answer: T | None = None
        self._problem: UnavailableError | None = None

    async def ask(self) -> T:
        """Raises: UnavailableError, to all who asked for that answer. Cancel: safe for the
        others.
        """
        before = self._num_begun
        async with self._lock:
            if self._num_done <= before:
                await self._begin()
            if self._problem is not None:
                raise self._problem
            return cast(T, self._answer)

    async def _begin(self) -> None:
        self._num_begun += 1
        number = self._num_begun
        try:
            self._answer, self._problem = await self._ask(), None
        except UnavailableError as problem:
            self._problem = problem
        self._num_done = number


class LogBounds:
    """Questions about the responses topic. The consumer is opened by the first one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection = _Connection(settings)
        self._spans = Shared(self._ask_spans)
        self._times: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._times_lock = asyncio.Lock()

    async def spans(self) -> dict[int, Span]:
        """What each partition holds that can be read, as of now. Raises: UnavailableError."""
        return await self._spans.ask()

    async def at(self, time_ms: int) -> dict[int, int]:
        """An offset of each partition from which on stands all that is not older than `time_ms`, as
        near as TIME_STEP_MS.

        Raises: UnavailableError. Cancel: safe.
        """
        step = max(0, time_ms) // TIME_STEP_MS
        async with self._times_lock:
            if step not in self._times:
                self._times[step] = await self._connection.use(
                    lambda consumer, parts: offsets_at(consumer, parts, step * TIME_STEP_MS)
                )
                if len(self._times) > MAX_TIMES:
                    self._times.popitem(last=False)
            return self._times[step]

    def forget(self) -> None:
        """The log is another one now."""
        self._times.clear()

    async def close(self) -> None:
        """Close the consumer. Safe to call twice."""
        await self._connection.close()

    async def _ask_spans(self) -> dict[int, Span]:
        return await self._connection.use(readable_spans)


class _Connection:
    """The consumer, opened when it is used and closed when it fails; one use at a time.

    Cancel: safe, the consumer stays for the next use.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._lock = asyncio.Lock()

    async def use(self, ask: Callable[[Any, list[Any]], Awaitable[dict[Any, T]]]) -> dict[int, T]:
        async with self._lock:
            try:
                if self._consumer is None:
                    self._consumer = await open_consumer(
                        self._settings, max_partition_fetch_bytes=FETCH_BYTES
                    )
                parts = await find_partitions(self._consumer, self._settings.topics.responses)
                answer = await bounded("offsets", ask(self._consumer, parts))
            except UnavailableError:
                await self.close()
                raise
            return {part.partition: found for part, found in answer.items()}

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer)
