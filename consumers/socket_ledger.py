"""Which subscription of a socket hands on which request, so that a socket gets each event once.
Sans I/O.

Subscriptions of one socket may overlap: a session and a request in it, or a session followed twice.
Each request has one owner among them; an explicit place to begin at takes the request over.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from headrace.consumers.log_event import LogEvent
from headrace.schemas.reply import ReplyReader, Seen, is_last

MAX_REMEMBERED = 1_000
"""Requests of one socket; the oldest is forgotten first, long after its last event."""


@dataclass(slots=True)
class _Owned:
    feed: object
    session_id: str
    reader: ReplyReader
    strict: bool


class SocketLedger:
    """Judges each event of each subscription (`feed`, any object) of one socket."""

    def __init__(self) -> None:
        self._owned: OrderedDict[str, _Owned] = OrderedDict()

    def claim(
        self, feed: object, request_id: str, session_id: str, *, starting_after: int | None = None
    ) -> None:
        """Give a request to `feed`, which has all its events from behind `starting_after` on."""
        reader = ReplyReader(starting_after=starting_after)
        self._remember(request_id, _Owned(feed, session_id, reader, strict=True))

    def claim_resumed(self, feed: object, seen: LogEvent) -> None:
        """Give the request of `seen` to `feed`, whose client has it up to that event."""
        owned = self._joined(feed, seen)
        owned.strict = True
        owned.reader.see(seen.event)
        self._remember(seen.request_id, owned)

    def forget_session(self, session_id: str) -> None:
        """Let go of a session's requests: a new subscription begins at a place of its own."""
        for name in [name for name, it in self._owned.items() if it.session_id == session_id]:
            del self._owned[name]

    def release(self, feed: object) -> None:
        """Let go of what `feed` did not finish, when it ends."""
        for name, owned in list(self._owned.items()):
            if owned.feed is feed and not owned.reader.finished:
                del self._owned[name]

    def judge(self, feed: object, event: LogEvent, *, starting_after: int | None = None) -> Seen:
        """What `feed` makes of `event`; GAP only for a claimed request, others join where they are.

        `starting_after`: for a request seen first, its client has it up to that sequence number.
        """
        owned = self._owned.get(event.request_id)
        if owned is None:
            owned = self._joined(feed, event)
            if starting_after is not None:
                owned.reader = ReplyReader(starting_after=starting_after)
            self._remember(event.request_id, owned)
        if owned.feed is not feed:
            return Seen.OLD
        owned.session_id = event.session_id
        seen = owned.reader.see(event.event)
        if seen is Seen.GAP and not owned.strict:
            owned.reader = self._joined(feed, event).reader
            return owned.reader.see(event.event)
        return seen

    def session_of(self, request_id: str) -> str | None:
        """Where a request is that was followed here, as far as that is known."""
        owned = self._owned.get(request_id)
        return None if owned is None or owned.session_id == request_id else owned.session_id

    def is_finished(self, request_id: str) -> bool:
        """Whether the last event of a request was handed on."""
        owned = self._owned.get(request_id)
        return owned is not None and owned.reader.finished

    def is_end(self, event: LogEvent) -> bool:
        """Whether `event`, which was dropped, ends the attempt that its request's owner follows."""
        owned = self._owned.get(event.request_id)
        return (
            owned is not None
            and is_last(event.event)
            and owned.reader.attempt == event.event["attempt"]
        )

    def _joined(self, feed: object, event: LogEvent) -> _Owned:
        before: Any = event.event["sequence_number"] - 1
        return _Owned(feed, event.session_id, ReplyReader(starting_after=before), strict=False)

    def _remember(self, request_id: str, owned: _Owned) -> None:
        self._owned[request_id] = owned
        self._owned.move_to_end(request_id)
        if len(self._owned) > MAX_REMEMBERED:
            self._owned.popitem(last=False)
