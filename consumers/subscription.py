"""One reader of the response log: replay first, then live, through a bounded buffer.

The log's reading loop puts events in (`offer`, never waits); the owner takes them out (`async
for`). Knows nothing of Kafka: the replay is handed in.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from headrace.consumers.log_event import LogEvent, Wanted
from headrace.schemas.errors import HeadraceError

MAX_BUFFERED_EVENTS = 2_000
"""About 20 s of one fast stream, or 1 s of a hundred: longer behind than that is not a hiccup."""

MAX_BUFFERED_BYTES = 4 * 2**20
"""What one reader may cost: 1,000 stuck readers stay within 4 GB at worst, 400 bytes an event in
practice.
"""

EVENTS_PER_TURN = 32
"""Handed out in a row, 3 ms of work at most; then others of this process have their turn."""


class SlowReaderError(HeadraceError):
    """This reader fell too far behind and was let go; others did not wait. It can resume at
    `cursor`.
    """

    retriable = True

    def __init__(self, cursor: str | None) -> None:
        super().__init__(cursor)
        self.cursor = cursor

    def __str__(self) -> str:
        place = f"; resume after cursor {self.cursor}" if self.cursor else ""
        return f"the reader fell too far behind{place}"


class Replay(Protocol):
    """The part of the log before the live position."""

    async def next(self) -> LogEvent | None:
        """The next wanted event before the targets, or None once all are reached."""

    async def stop(self) -> None:
        """Free what it holds."""


class Subscription:
    """An async context manager and iterator over the wanted events, in the order of the log.

    Lives between `__aenter__` and `__aexit__`; one task iterates. Repeats in the log are handed on
    as they are: use `headrace.schemas.reply.ReplyReader`, one per request.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        enter: "Callable[[Subscription], Awaitable[None]]",
        leave: "Callable[[Subscription], None]",
    ) -> None:
        self.wanted = wanted
        self.cursor: str | None = None
        """Of the last event that was handed out."""
        self.resumed_after: LogEvent | None = None
        """The event at the cursor that this subscription was opened with."""
        self.replay: Replay | None = None
        self.move_targets: Callable[[], None] | None = None
        """Set while a replay runs: makes it go on to the live position of now."""
        self.partitions: set[int] | None = None
        """Where wanted events can be; None: anywhere."""
        self.floor: dict[int, int] = {}
        """First offset that is still wanted, by partition."""
        self._enter, self._leave = enter, leave
        self._buffer: deque[LogEvent] = deque()
        self._buffered_bytes = 0
        self._num_in_a_row = 0
        self._arrived = asyncio.Event()
        self._error: HeadraceError | None = None

    async def __aenter__(self) -> Self:
        """Register; with a start in the past also check it.

        Raises: RequestError `resume_gap`; UnavailableError, where trying again may help.
        Cancel: safe, nothing stays registered.
        """
        try:
            await self._enter(self)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._leave(self)
        self._clear()
        replay, self.replay = self.replay, None
        if replay is not None:
            await replay.stop()

    def __aiter__(self) -> Self:
        return self

    @property
    def is_live(self) -> bool:
        """Whether the events handed out now come as they are written, not from the past."""
        return self.replay is None

    async def __anext__(self) -> LogEvent:
        """The next event; waits without a bound (callers set one).

        Raises: SlowReaderError, UnavailableError: the subscription is over.
        Cancel: safe, no event is lost.
        """
        self._num_in_a_row += 1
        if self._num_in_a_row > EVENTS_PER_TURN:
            self._num_in_a_row = 0
            await asyncio.sleep(0)
        event = await self._replayed()
        while event is None:
            event = self._pop()
            if event is None:
                if self._error is not None:
                    raise self._error
                self._arrived.clear()
                await self._arrived.wait()
        self.cursor = event.cursor
        return event

    async def _replayed(self) -> LogEvent | None:
        if self.replay is None:
            return None
        event = await self.replay.next()
        if event is None:
            self.move_targets = None
            await self.replay.stop()  # cancelled here, the next call comes by again
            self.replay = None
        return event

    def _pop(self) -> LogEvent | None:
        if not self._buffer:
            return None
        event = self._buffer.popleft()
        self._buffered_bytes -= event.num_bytes
        return event

    def offer(self, event: LogEvent) -> None:
        """Take a live event in, without waiting; a full buffer ends this subscription alone."""
        if self._error is not None or not self._is_wanted(event):
            return
        self._buffer.append(event)
        self._buffered_bytes += event.num_bytes
        full = len(self._buffer) > MAX_BUFFERED_EVENTS or self._buffered_bytes > MAX_BUFFERED_BYTES
        if full and self.move_targets is not None:
            self._clear()  # the replay reads these from the log, and they are not lost
            self.move_targets()
        elif full:
            self.fail(SlowReaderError(self.cursor))
        self._arrived.set()

    def fail(self, error: HeadraceError) -> None:
        """End the subscription: the reader gets `error` in place of what was buffered."""
        if self._error is None:
            self._error = error
            self._clear()
            self._arrived.set()

    def _is_wanted(self, event: LogEvent) -> bool:
        here = self.partitions is None or event.partition in self.partitions
        return (
            here
            and event.offset >= self.floor.get(event.partition, 0)
            and self.wanted.accepts(event)
        )

    def _clear(self) -> None:
        self._buffer.clear()
        self._buffered_bytes = 0
