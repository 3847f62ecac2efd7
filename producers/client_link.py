"""One socket that many answers share: opened when it is needed, opened again when it is lost.

Owns the task that reads and writes, and what has to be said again on a new socket. A stream that is
not read holds nobody up: it takes its events in without waiting, or leaves them in the log.
"""

import asyncio
from collections import deque
from typing import Any, Protocol

import orjson
import structlog
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from headrace.producers.client_dialer import Dialer
from headrace.producers.client_follow import Frame, RequestFollow
from headrace.producers.client_orders import Order, Orders
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError, told_error
from headrace.schemas.event_shape import is_event
from headrace.schemas.reply import is_last
from headrace.schemas.tasks import OwnedTask, until_first_done

MAX_STREAMS = 80
"""On one socket; a gateway takes 100, and those that were left count until their last event."""

SEND_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 5.0
"""For the last cancels to be confirmed when the client ends."""

TOO_BIG = 1009
_log = structlog.get_logger(__name__)


class Stream(Protocol):
    """What a link does with a stream."""

    follow: RequestFollow

    def offer(self, frame: dict[str, Any], num_bytes: int) -> None:
        """Take an `event` frame in, without waiting."""

    def fail(self, problem: RequestError) -> None:
        """End: the gateway refuses."""

    def leave(self) -> None:
        """End, because nobody reads it any longer."""


class Link:
    """The socket of up to MAX_STREAMS streams. `start` and `close` frame its life."""

    def __init__(self, dialer: Dialer) -> None:
        self.problem: str | None = None
        """Why there is no socket now."""
        self._dialer = dialer
        self._streams: dict[str, Stream] = {}
        self._left: set[str] = set()
        """Requests that nobody reads any longer, until this socket has seen their end."""
        self._orders = Orders()
        self._outbox: deque[Stream | Order] = deque()
        self._unanswered: dict[str, int] = {}
        """Requests whose `generate` frame was sent on this socket and not answered yet, with its
        size; the oldest first.
        """
        self._wake, self._wanted = asyncio.Event(), asyncio.Event()
        self._task = OwnedTask("client.link")

    @property
    def has_room(self) -> bool:
        """Whether it takes one more; a link that a bug has ended takes none."""
        return self._task.is_running and len(self._streams) + len(self._left) < MAX_STREAMS

    def follows(self, request_id: str) -> bool:
        """Whether a stream of this request is open here."""
        return request_id in self._streams

    def start(self) -> None:
        """Begin; nothing is opened before the first stream."""
        self._task.start(self._run())

    async def close(self) -> None:
        """End all streams, wait for the cancels to be confirmed, and hang up. Bounded.

        Raises: what ended the task, if it was a bug.
        """
        for stream in list(self._streams.values()):
            stream.leave()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._orders.none_left.wait()
        except TimeoutError:
            _log.warning(
                "client.not_cancelled", generations=len(self._orders.open), why=self.problem
            )
        finally:
            await self._task.stop()

    def add(self, stream: Stream) -> None:
        """Follow it, now and on every later socket, until it is finished, refused or left."""
        self._streams[stream.follow.request_id] = stream
        self._say(stream)

    def resend(self, stream: Stream) -> None:
        """Ask for a stream's events again, from its place."""
        if self._streams.get(stream.follow.request_id) is stream:
            self._say(stream)

    def leave(self, stream: Stream) -> None:
        """Hand nothing on to `stream` any longer."""
        name = stream.follow.request_id
        if self._streams.get(name) is stream:
            del self._streams[name]
            if not stream.follow.finished:
                self._left.add(name)

    def cancel(self, request_id: str, session_id: str) -> Order:
        """Ask for the end of a generation; asked again on each new socket until it is confirmed."""
        order = Order(request_id, session_id)
        self._orders.add(order)
        self._say(order)
        return order

    def _say(self, what: Stream | Order) -> None:
        self._outbox.append(what)
        self._wanted.set()
        self._wake.set()

    # --- the task

    async def _run(self) -> None:
        try:
            await self._connect_for_ever()
        finally:
            self._refuse_all(RequestError(ErrorCode.INTERNAL_ERROR, "this client has ended"))

    async def _connect_for_ever(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                socket = await self._dialer.open()
                self.problem = None
                try:
                    await self._serve(socket)
                finally:
                    await socket.close()
            except UnavailableError as problem:
                self.problem = str(problem)
            except RequestError as problem:
                self._refuse_all(problem)
            if not self._streams and not self._orders.open:
                self._wanted.clear()
            await asyncio.sleep(self._dialer.next_pause_s())

    async def _serve(self, socket: ClientConnection) -> None:
        """Until the socket is lost. Raises: UnavailableError."""
        for kept in (self._outbox, self._unanswered, self._left):
            kept.clear()
        self._orders.forget_socket()
        self._outbox.extend(self._streams.values())
        self._outbox.extend(self._orders.open)
        self._wake.set()
        try:
            await until_first_done(self._read(socket), self._write(socket))
        except (ConnectionClosed, TimeoutError, orjson.JSONDecodeError) as problem:
            closed = socket.protocol.close_rcvd
            if closed is not None and closed.code == TOO_BIG and self._unanswered:
                text = "the gateway takes no request as large as this"
                largest = max(self._unanswered, key=self._unanswered.__getitem__)
                self._refuse(largest, RequestError(ErrorCode.INVALID_VALUE, text))
            reason = f"the connection was lost: {problem}"
            raise UnavailableError("the gateway", SEND_TIMEOUT_S, reason) from None

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            while self._outbox:
                for text in self._texts(self._outbox.popleft()):
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await socket.send(text)
            self._wake.clear()
            await self._wake.wait()

    def _texts(self, what: Stream | Order) -> list[str]:
        """NOTE: what is sent is said now, not when it was put in: a stream moves on meanwhile."""
        if isinstance(what, Order):
            if what not in self._orders.open:
                return []
            self._orders.said(what)
            return [_text(frame) for frame in what.frames]
        if self._streams.get(what.follow.request_id) is not what:
            return []
        frame = what.follow.frame()
        text = _text(frame)
        if frame["type"] == "generate":
            self._unanswered[what.follow.request_id] = len(text)
            what.follow.was_sent = True
        return [text]

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            text = await socket.recv(decode=False)
            frame = orjson.loads(text)
            kind = frame.get("type") if isinstance(frame, dict) else None
            if kind == "event":
                self._take_event(frame, len(text))
            elif kind == "accepted":
                self._take_accepted(frame)
            elif kind == "error":
                self._take_error(frame)
            elif kind == "pong" and (order := self._orders.pong()) is not None:
                self._again_later(order)
            if kind != "error":
                self._dialer.went_well()

    def _take_event(self, frame: dict[str, Any], num_bytes: int) -> None:
        event = frame.get("event")
        name = str(event.get("id")) if isinstance(event, dict) else ""
        if not is_event(event) or not isinstance(frame.get("cursor"), str):
            _log.warning("client.unreadable_event", request_id=name)
            text = "the gateway sent an event that cannot be read"
            self._refuse(name, RequestError(ErrorCode.INTERNAL_ERROR, text))
            return
        stream = self._streams.get(name)
        if stream is not None:
            stream.offer(frame, num_bytes)
            if stream.follow.finished:
                del self._streams[name]
        elif name in self._left and is_last(event):
            self._left.discard(name)

    def _take_accepted(self, frame: dict[str, Any]) -> None:
        name = str(frame.get("request_id"))
        stream = self._streams.get(name)
        if stream is not None:
            stream.follow.is_accepted = True
        self._unanswered.pop(name, None)

    def _take_error(self, frame: dict[str, Any]) -> None:
        told, name = frame.get("error"), frame.get("request_id")
        problem = told_error(told if isinstance(told, dict) else {})
        if name is None:  # frames are answered in order, and only a request of ours can be unfit
            self._refuse(next(iter(self._unanswered), None), problem)
            return
        self._unanswered.pop(name, None)
        self._orders.refused(name, problem)
        stream = self._streams.get(name)
        if stream is None:
            return
        if problem.code is ErrorCode.OVERLOADED:
            self._again_later(stream)
        else:
            self._refuse(name, problem)

    def _again_later(self, what: Stream | Order) -> None:
        """The gateway could not, for now; whoever waits for it has a bound of its own."""
        asyncio.get_running_loop().call_later(self._dialer.next_pause_s(), self._say, what)

    def _refuse(self, name: str | None, problem: RequestError) -> None:
        self._unanswered.pop(name or "", None)
        stream = self._streams.pop(name or "", None)
        if stream is not None:
            stream.fail(problem)
        else:
            _log.warning("client.error", reason=str(problem))

    def _refuse_all(self, problem: RequestError) -> None:
        """No gateway lets us in: nothing that waits can go on."""
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.fail(problem)
        self._orders.end_all(problem)


def _text(frame: Frame) -> str:
    return orjson.dumps(frame).decode()
