"""One answer as the application reads it: typed events, one after another, until the last.

Owns the buffer between the shared socket and its reader, and the end of a generation that nobody
reads any longer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Self

from headrace.producers.client_errors import AnswerFailedError, OutOfTouchError, Place
from headrace.producers.client_events import Completed, Event, Failed, Restarted
from headrace.producers.client_follow import RequestFollow
from headrace.producers.client_link import Link
from headrace.schemas.errors import RequestError

MAX_BUFFERED_EVENTS = 1_000
MAX_BUFFERED_BYTES = 4 * 2**20
"""What an answer that is not read may cost here; the rest stays in the log."""


class Answer:
    """`async for event in answer` reads it; nothing is sent before.

    Leaving the loop early, by `break`, an error or a cancelled task, cancels the generation, unless
    it is a background one. Within `async with answer` only leaving that does, so that a reader may
    come and go.
    """

    def __init__(
        self,
        follow: RequestFollow,
        attach: Callable[["Answer"], Link],
        *,
        background: bool,
        max_wait_s: float,
    ) -> None:
        """`attach` gives it to a link; it is called once, when the reading begins."""
        self.follow = follow
        self._attach, self._max_wait_s = attach, max_wait_s
        self._link: Link | None = None
        self._cancels = not background
        self._buffer: deque[tuple[Event, int]] = deque()
        self._buffered_bytes = 0
        self._arrived = asyncio.Event()
        self._parked = self._asked_again = False
        self._problem: RequestError | None = None
        self._cursor: str | None = None
        self._over = self._is_held = False

    @property
    def request_id(self) -> str:
        return self.follow.request_id

    @property
    def session_id(self) -> str:
        return self.follow.session_id

    @property
    def place(self) -> Place:
        """Where the reader is."""
        return Place(self.request_id, self.session_id, self._cursor)

    async def __aenter__(self) -> Self:
        """Raises: RequestError where this client reads the request already."""
        self._is_held = True
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Raises: RequestError (refused; `resume_gap`), AnswerFailedError, OutOfTouchError."""
        self._begin()
        try:
            while not self._over:
                event = await self._next()
                if isinstance(event, Failed):
                    raise AnswerFailedError(event.error, self.request_id, self.session_id)
                yield event
        finally:
            if not self._is_held:
                self.leave()

    async def whole(self) -> Completed:
        """Read to the end; the last event, with all of the text. Raises: as reading it does."""
        pieces: list[str] = []
        last: Event | None = None
        async for event in self:
            if isinstance(event, Restarted):
                pieces.clear()
            pieces.append(event.text)
            last = event
        if not isinstance(last, Completed):
            raise RuntimeError("this answer was read before")
        return replace(last, text="".join(pieces))

    def _begin(self) -> None:
        if self._link is None and not self._over:
            self._link = self._attach(self)

    async def _next(self) -> Event:
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._until_arrived()
        except TimeoutError:
            self._cancels = False  # the caller is told where to go on
            reason = self._link.problem if self._link else None
            raise OutOfTouchError(self.place, self._max_wait_s, reason) from None
        event, num_bytes = self._buffer.popleft()
        self._buffered_bytes -= num_bytes
        self._cursor = event.cursor
        self._over = isinstance(event, Completed | Failed)
        return event

    async def _until_arrived(self) -> None:
        while not self._buffer:
            if self._problem is not None:
                raise self._problem
            if self._parked:
                self._parked = False
                self._ask_again()
            self._arrived.clear()
            await self._arrived.wait()

    def _ask_again(self) -> None:
        """NOTE: until the first event that fits, what comes was on its way before we asked."""
        self._asked_again = True
        if self._link is not None:
            self._link.resend(self)

    # --- what the link does

    def offer(self, frame: dict[str, Any], num_bytes: int) -> None:
        """Take a frame in; with a full buffer it stays in the log, to be read from there later."""
        full = len(self._buffer) >= MAX_BUFFERED_EVENTS or self._buffered_bytes > MAX_BUFFERED_BYTES
        if self._parked or full:
            self._parked = True
            return
        events = self.follow.take(frame)
        if events is None and not self._asked_again:
            self._ask_again()
        for event in events or ():
            self._asked_again = False
            self._buffer.append((event, num_bytes))
            self._buffered_bytes += num_bytes
            self._arrived.set()

    def fail(self, problem: RequestError) -> None:
        """What has come is still read; then `problem` is raised."""
        self._problem, self._cancels = problem, False
        self._arrived.set()

    def leave(self) -> None:
        """Read no more; cancel what is under way. Safe to call twice."""
        self._over = True
        link, cancels, self._cancels = self._link, self._cancels, False
        if link is None:
            return
        link.leave(self)
        if cancels and self.follow.was_sent and not self.follow.finished:
            link.cancel(self.request_id, self.session_id)
