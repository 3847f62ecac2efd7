"""The subscriptions of one socket: opening them, handing their events on, ending them.

Knows nothing of frames that come in. Every feed is ended by `end` in each case: a task that is
cancelled before its first step runs no `finally`, so the tasks do not own what they read from.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from headrace.consumers.context import Bounds
from headrace.consumers.cursor import resume_gap
from headrace.consumers.log_event import LogEvent
from headrace.consumers.socket_ledger import SocketLedger
from headrace.consumers.subscription import SlowReaderError, Subscription
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError
from headrace.schemas.reply import Seen


@dataclass(eq=False, slots=True)
class Feed:
    """A subscription and the task that hands its events on.

    `positioned`: it begins at a place that the client named.
    """

    subscription: Subscription
    positioned: bool
    starting_after: int | None = None
    task: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str | None:
        return self.subscription.wanted.session_id

    @property
    def request_id(self) -> str | None:
        return self.subscription.wanted.request_id


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where feeds put what they have: each may raise to end the socket."""

    event: Callable[[LogEvent], Awaitable[None]]
    error: Callable[[HeadraceError, dict[str, Any]], Awaitable[None]]
    too_slow: Callable[[SlowReaderError], Awaitable[None]]


class SocketFeeds:
    """All feeds of one socket; their tasks run in the group that is given."""

    def __init__(self, tasks: asyncio.TaskGroup, outlet: Outlet, bounds: Bounds) -> None:
        self._tasks, self._outlet, self._bounds = tasks, outlet, bounds
        self._ledger = SocketLedger()
        self._feeds: set[Feed] = set()

    async def open(self, feed: Feed) -> None:
        """Register `feed`; its events wait until it is started.

        Raises: RequestError `rate_limited`, `invalid_value` for a request that this socket knows in
            another session, and what entering a subscription raises.
        """
        known = self._ledger.session_of(feed.request_id) if feed.request_id else None
        if known is not None and feed.session_id not in (None, known):
            text = f"this request is in session {known!r:.100}; an id is used once"
            raise RequestError(ErrorCode.INVALID_VALUE, text, "session_id")
        if len(self._feeds) >= self._bounds.max_feeds:
            text = f"a socket may follow {self._bounds.max_feeds} things at once"
            raise RequestError(ErrorCode.RATE_LIMITED, text)
        await feed.subscription.__aenter__()
        self._feeds.add(feed)

    async def end(self, feed: Feed) -> None:
        """Unsubscribe. Safe to call twice."""
        if feed in self._feeds:
            self._feeds.discard(feed)
            self._ledger.release(feed)
            await feed.subscription.__aexit__()

    async def end_all(self) -> None:
        """End what is left when the socket is over; the tasks have ended before."""
        for feed in list(self._feeds):
            await self.end(feed)

    def follows(self, session_id: str | None) -> bool:
        """Whether the session as a whole is followed already."""
        return any(
            feed.request_id is None and feed.session_id == session_id for feed in self._feeds
        )

    async def start(self, feed: Feed) -> None:
        """Hand `feed`'s events on; it takes over from older feeds what it covers."""
        if feed.request_id is not None:
            await self._stop(feed, lambda other: other.request_id == feed.request_id)
            home = feed.session_id or feed.request_id
            self._ledger.claim(feed, feed.request_id, home, starting_after=feed.starting_after)
        elif feed.positioned:
            await self._stop(feed, lambda other: other.session_id == feed.session_id)
            self._ledger.forget_session(feed.session_id or "")
        if feed.subscription.resumed_after is not None:
            self._ledger.claim_resumed(feed, feed.subscription.resumed_after)
        feed.task = self._tasks.create_task(self._hand_on(feed), name="socket.feed")

    async def _stop(self, new: Feed, is_over: Callable[[Feed], bool]) -> None:
        over = [feed for feed in self._feeds if feed is not new and is_over(feed)]
        tasks = [feed.task for feed in over if feed.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for feed in over:
            await self.end(feed)

    async def _hand_on(self, feed: Feed) -> None:
        try:
            while await self._hand_on_one(feed):
                pass
        except SlowReaderError as problem:
            await self._outlet.too_slow(problem)
        except HeadraceError as problem:
            names = {"request_id": feed.request_id, "session_id": feed.session_id}
            await self._outlet.error(problem, {name: it for name, it in names.items() if it})
        finally:
            await self.end(feed)

    async def _hand_on_one(self, feed: Feed) -> bool:
        """Send one event if it is to be sent; whether more can come."""
        if feed.request_id is not None and self._ledger.is_finished(feed.request_id):
            return False
        event = await anext(feed.subscription)
        first_at = None if feed.subscription.is_live else feed.starting_after
        seen = self._ledger.judge(feed, event, starting_after=first_at)
        if seen is Seen.GAP:
            raise resume_gap("events of this request are missing in the log", "request_id")
        if seen is not Seen.OLD:
            await self._outlet.event(event)
        elif feed.request_id is not None and self._ledger.is_end(event):
            number = event.event["sequence_number"]
            if feed.starting_after is not None and number < feed.starting_after:
                raise resume_gap(f"the last event of this request is {number}", "starting_after")
            return False
        return True
