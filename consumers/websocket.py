"""`/v1/stream`: one WebSocket, its subscriptions and generations (contract §8).

A generation belongs to its session, not to the socket: when the socket closes it goes on, so that a
page can reload and read on from its cursor. A client that wants the other rule says `"background":
false`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from headrace.consumers.context import Gateway
from headrace.consumers.errors_http import as_request_error
from headrace.consumers.gateway_metrics import SLOW_REASONS, close_reason
from headrace.consumers.generation import abandon, cancel, submit
from headrace.consumers.log_event import LogEvent
from headrace.consumers.socket_feeds import Feed, Outlet, SocketFeeds
from headrace.consumers.socket_frames import (
    CancelFrame,
    Frame,
    Generate,
    Subscribe,
    decode_frame,
    event_frame,
    text_frame,
)
from headrace.consumers.socket_protocol import TRY_AGAIN_LATER, SocketProtocol, StalledError
from headrace.consumers.submission import Submission, prepare
from headrace.consumers.subscription import SlowReaderError
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError
from headrace.schemas.reply import is_last

Trace = Sequence[tuple[str, bytes]]
_PONG = text_frame(b'{"type":"pong"}')


class _SocketOver(Exception):
    """Private: the socket is over, for a reason of `CLOSE_REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SocketSession:
    """The life of one accepted WebSocket. `run` returns when it is over; nothing is left behind."""

    def __init__(self, wire: SocketProtocol, trace: Trace, gateway: Gateway, tenant: str) -> None:
        self._wire, self._trace, self._gateway, self._tenant = wire, trace, gateway, tenant
        self._foreground: dict[str, str] = {}
        """Session by request id of the generations that end with this socket."""
        self._events_sent = gateway.metrics.events_sent.labels("websocket")
        self._tasks = asyncio.TaskGroup()
        outlet = Outlet(self._send_event, self._send_error, self._too_slow)
        self._feeds = SocketFeeds(self._tasks, outlet, gateway.bounds)

    async def run(self) -> None:
        """Serve the socket until either side closes it.

        Cancel: safe; subscriptions end, foreground generations are cancelled.
        """
        self._gateway.metrics.sockets.inc()
        try:
            async with self._tasks:
                await self._receive()
        except* _SocketOver as ends:
            self._end(next(end.reason for end in _leaves(ends) if isinstance(end, _SocketOver)))
        finally:
            self._gateway.metrics.sockets.dec()
            await self._feeds.end_all()
            await self._cancel_foreground()

    def _end(self, reason: str) -> None:
        """Count it, and let a slow client go: without waiting for it."""
        self._gateway.metrics.sockets_closed.labels(reason).inc()
        if reason in SLOW_REASONS:
            self._gateway.metrics.slow_readers.inc()
            self._wire.let_go(TRY_AGAIN_LATER)

    async def _cancel_foreground(self) -> None:
        """All at once: each may have to wait for Kafka."""
        async with asyncio.TaskGroup() as tasks:
            for names in self._foreground.items():
                leaving = abandon(self._gateway, *names, tenant=self._tenant)
                tasks.create_task(leaving, name="socket.cancel")

    # --- what the client sends

    async def _receive(self) -> None:
        while True:
            message: Any = await self._wire.receive()
            if message["type"] == "websocket.disconnect":
                raise _SocketOver(close_reason(message["code"]))
            try:
                await self._act(message.get("text"))
            except HeadraceError as problem:
                await self._send_error(problem)

    async def _act(self, text: str | None) -> None:
        if text is None:
            raise RequestError(ErrorCode.INVALID_VALUE, "frames are JSON text, not binary")
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > self._gateway.settings.max_request_bytes:
            limit = self._gateway.settings.max_request_bytes
            raise RequestError(ErrorCode.INVALID_VALUE, f"a frame may have {limit} bytes at most")
        frame, body = decode_frame(data)
        try:
            await self._answer(frame, body)
        except HeadraceError as problem:
            names = ("request_id", "session_id")
            await self._send_error(problem, {name: body[name] for name in names if name in body})

    async def _answer(self, frame: Frame, body: dict[str, Any]) -> None:
        if isinstance(frame, Generate):
            await self._generate(body)
        elif isinstance(frame, Subscribe):
            await self._subscribe(frame)
        elif isinstance(frame, CancelFrame):
            session_id = frame.session_id or frame.request_id
            await cancel(self._gateway, frame.request_id, session_id, tenant=self._tenant)
        else:
            await self._send(_PONG)

    async def _generate(self, body: dict[str, Any]) -> None:
        call = prepare(body, tenant=self._tenant, background=True)
        feed = Feed(
            self._gateway.log.follow(
                tenant=self._tenant,
                session_id=call.session_to_follow,
                request_id=call.request_id,
                from_start=call.may_exist,
            ),
            positioned=True,
        )
        await self._feeds.open(feed)
        try:
            await self._submit(call)
        except HeadraceError:
            await self._feeds.end(feed)
            raise
        names = {"request_id": call.request_id, "session_id": call.session_id}
        await self._send(text_frame(orjson.dumps({"type": "accepted"} | names)))
        await self._feeds.start(feed)

    async def _submit(self, call: Submission) -> None:
        """One that is refused is not ours to cancel; one that may be written is.

        Raises: as `submit`.
        """
        is_new = not call.background and call.request_id not in self._foreground
        if is_new:
            self._foreground[call.request_id] = call.session_id
        try:
            await submit(self._gateway, call, tenant=self._tenant, trace=self._trace)
        except RequestError:
            if is_new:
                del self._foreground[call.request_id]
            raise

    async def _subscribe(self, frame: Subscribe) -> None:
        placed = frame.starting_after is not None or frame.cursor is not None
        if frame.request_id is None and not placed and self._feeds.follows(frame.session_id):
            return
        feed = Feed(
            self._gateway.log.follow(
                tenant=self._tenant,
                session_id=frame.session_id,
                request_id=frame.request_id,
                starting_after=frame.starting_after,
                cursor=frame.cursor,
                from_start=frame.request_id is not None and not placed,
            ),
            positioned=placed,
            starting_after=frame.starting_after,
        )
        await self._feeds.open(feed)
        await self._feeds.start(feed)

    # --- what it is sent

    async def _too_slow(self, problem: SlowReaderError) -> None:
        raise _SocketOver("behind") from problem

    async def _send_event(self, event: LogEvent) -> None:
        await self._send(event_frame(event))
        self._events_sent.inc()
        if is_last(event.event):
            self._foreground.pop(event.request_id, None)

    async def _send_error(
        self, problem: HeadraceError, names: dict[str, Any] | None = None
    ) -> None:
        error = as_request_error(problem).body()
        frame = {"type": "error", "error": error} | (names or {})
        await self._send(text_frame(orjson.dumps(frame)))

    async def _send(self, frame: bytes) -> None:
        """Write a whole frame once there is room; this socket's feeds wait here, nobody else."""
        while not self._wire.writable.is_set():
            try:
                await self._wire.until_writable(self._gateway.bounds.send_s)
            except StalledError as problem:
                raise _SocketOver("stalled") from problem
        if not self._wire.is_open:
            raise _SocketOver("client")
        self._wire.write(frame)


def _leaves(problems: BaseExceptionGroup[Any]) -> list[BaseException]:
    """The plain exceptions in a group, however deep."""
    found: list[BaseException] = []
    for problem in problems.exceptions:
        found += _leaves(problem) if isinstance(problem, BaseExceptionGroup) else [problem]
    return found
