"""What a client asks of a gateway, at first and after each cut, and what it drops. Sans I/O.

The same request may be sent and the same event may come any number of times: the rule of contract
§3 makes each event count once.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from headrace.producers.client_events import Event, read_event
from headrace.schemas.reply import ReplyReader, Seen

MAX_REMEMBERED = 1_000
"""Requests of a session; the oldest is forgotten first, long after its last event."""

Frame = dict[str, Any]


class RequestFollow:
    """One request: to be made with `body`, or only to be read, from a place or from its start."""

    def __init__(
        self,
        request_id: str,
        session_id: str,
        *,
        body: Mapping[str, Any] | None = None,
        starting_after: int | None = None,
        cursor: str | None = None,
    ) -> None:
        self.request_id, self.session_id = request_id, session_id
        self.is_accepted = body is None
        """Whether a gateway has said that the request is in Kafka, or an event has."""
        self.was_sent = body is None
        """Whether a gateway may have got the request."""
        self._body = body
        self._starting_after, self._cursor = starting_after, cursor
        self._reader: ReplyReader | None = None
        if cursor is None:
            self._reader = ReplyReader(starting_after=starting_after)

    @property
    def finished(self) -> bool:
        """Whether the last event was taken."""
        return self._reader is not None and self._reader.finished

    def frame(self) -> Frame:
        """What to send now, on any socket.

        NOTE: the generation is a background one to every gateway, or a cut would cancel it; who
        leaves it cancels it by a frame.
        """
        if not self.is_accepted and self._body is not None:
            return {**self._body, "type": "generate", "background": True}
        names = {"request_id": self.request_id, "session_id": self.session_id}
        frame: Frame = {"type": "subscribe", **names}
        if self._cursor is not None:
            frame["cursor"] = self._cursor
        elif self._starting_after is not None:
            frame["starting_after"] = self._starting_after
        return frame

    def take(self, frame: Mapping[str, Any]) -> list[Event] | None:
        """The events to hand out for an `event` frame: none for a repeat; None where events before
        it are missing, so that `frame()` is to be sent again.
        """
        seen = self._judge(frame["event"])
        if seen is Seen.GAP:
            return None
        if seen is Seen.OLD:
            return []
        self.is_accepted = True
        self._cursor = frame["cursor"]
        return _events(frame, seen)

    def _judge(self, event: Mapping[str, Any]) -> Seen:
        number = event["sequence_number"]
        if self._reader is None:  # behind a cursor: the first event that comes is the next one
            self._reader = ReplyReader(starting_after=number - 1)
        is_first = self._reader.attempt is None
        if is_first and number == 0 and self._reader.next_number > 0:
            # what the reader has is never sent again, so this is of another attempt
            self._reader = ReplyReader()
            self._reader.see(dict(event))
            return Seen.RESTART
        return self._reader.see(dict(event))


class SessionFollow:
    """All requests of a session, from now on, from behind a cursor, or from the log's start."""

    def __init__(
        self, session_id: str, *, cursor: str | None = None, from_start: bool = False
    ) -> None:
        self.session_id, self.cursor = session_id, cursor
        self._from_start = from_start
        self._readers: OrderedDict[str, ReplyReader] = OrderedDict()

    def frame(self) -> Frame:
        """What to send now, on a new socket."""
        frame: Frame = {"type": "subscribe", "session_id": self.session_id}
        if self.cursor is not None:
            frame["cursor"] = self.cursor
        elif self._from_start:
            frame["starting_after"] = -1
        return frame

    def take(self, frame: Mapping[str, Any]) -> list[Event]:
        """The events to hand out for an `event` frame; none for a repeat.

        A request that is in mid-answer when it is first seen is joined there.
        """
        event = frame["event"]
        reader = self._readers.get(event["id"])
        seen = Seen.GAP if reader is None else reader.see(event)
        if seen is Seen.GAP:
            reader = ReplyReader(starting_after=event["sequence_number"] - 1)
            seen = reader.see(event)
            self._remember(event["id"], reader)
        if seen is Seen.OLD:
            return []
        self.cursor = frame["cursor"]
        return _events(frame, seen)

    def _remember(self, request_id: str, reader: ReplyReader) -> None:
        self._readers[request_id] = reader
        self._readers.move_to_end(request_id)
        if len(self._readers) > MAX_REMEMBERED:
            self._readers.popitem(last=False)


def _events(frame: Mapping[str, Any], seen: Seen) -> list[Event]:
    first = [read_event(frame, restarted=True)] if seen is Seen.RESTART else []
    return [*first, read_event(frame)]
