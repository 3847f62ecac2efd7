"""The connection under `/v1/stream`: uvicorn's WebSocket, with bounds for clients that do not read.

Owns what one client may hold (buffers of process and kernel), the pings, and the way it is let go.
Knows nothing of subscriptions: the session above says what is sent, and when a client is slow.

uvicorn alone waits for room before it sends a close frame, which a client that does not read never
gives; it answers pings into a full buffer, and keeps a lost client's buffer for ever. Decision 014.
"""

import asyncio
import random
from asyncio.transports import BaseTransport
from collections.abc import Callable, Coroutine
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from headrace.consumers.http_protocol import LINGER_S, bound_kernel_buffer
from headrace.consumers.in_pieces import InPieces
from headrace.schemas.errors import HeadraceError

WIRE = "headrace.wire"
"""The ASGI extension under which an application finds the `SocketProtocol` of its socket."""

KEY_REVOKED = 1008
"""The close code where the socket's API key was taken away: a policy was violated."""

TRY_AGAIN_LATER = 1013
"""The close code of contract §8: this client fell behind, and may resume by cursor."""

WRITE_BUFFER_BYTES = 32 * 1024
"""What one client may leave here before its readers wait, plus one frame."""

MAX_FRAGMENTS = 1_000
"""Kept one by one, then as one: empty fragments count in no limit of a message's size."""


class StalledError(HeadraceError):
    """A client took nothing for too long."""

    def __init__(self, stall_s: float) -> None:
        super().__init__(stall_s)
        self.stall_s = stall_s

    def __str__(self) -> str:
        return f"the client took nothing for {self.stall_s:g} s"


class SocketProtocol(InPieces, WebSocketsSansIOProtocol):
    """For `uvicorn.Config(ws=…)`. Applications use `write`, `until_writable` and `let_go` beside
    what ASGI gives them.
    """

    transport: asyncio.Transport
    session: Callable[[], Coroutine[Any, Any, None]] | None = None
    """What the application leaves to be run for the rest of the socket's life."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Bound the buffers."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        bound_kernel_buffer(self.transport)

    async def run_asgi(self) -> None:
        """Run the application, which finds this object in its scope, then the `session` it left.

        So the frames of middleware and routing end with the handshake: half of a socket's objects.
        """
        cast("dict[str, Any]", self.scope["extensions"])[WIRE] = self
        self.app = self._app_and_session
        await super().run_asgi()

    async def _app_and_session(self, *asgi: Any) -> None:
        await self.config.loaded_app(*asgi)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused in full, which uvicorn logs as an error
        if self.session is not None:
            cast("dict[str, Any]", self.scope).clear()
            del self.request, self.response
            await self.session()

    # --- what the application uses

    @property
    def is_open(self) -> bool:
        """Whether what is written may still arrive."""
        return not (self.close_sent or self.transport.is_closing())

    def write(self, frame: bytes) -> None:
        """Send a frame, or drop it if the socket is closed. Does not wait."""
        if self.is_open:
            self.transport.write(frame)

    async def until_writable(self, stall_s: float) -> None:
        """Wait until this client has made room, or is gone.

        Raises: StalledError when it takes nothing for `stall_s`; a slow one that reads on is waited
        for. Cancel: safe.
        """
        left_bytes = self.transport.get_write_buffer_size()
        while not self.writable.is_set():
            try:
                async with asyncio.timeout(stall_s):
                    await self.writable.wait()
            except TimeoutError:
                before_bytes, left_bytes = left_bytes, self.transport.get_write_buffer_size()
                if left_bytes >= before_bytes:
                    raise StalledError(stall_s) from None

    def let_go(self, code: int) -> None:
        """Close with `code` behind what was written, without waiting; `LINGER_S` to read it."""
        if not self.is_open:
            return
        self.stop_keepalive()
        self.conn.send_close(code)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
        self.read_paused = False
        self.read_on()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    # --- what uvicorn does otherwise

    @property
    def is_full(self) -> bool:
        """Whether there is a message that the session has not taken."""
        return self.read_paused

    def parse(self, piece: bytes) -> None:
        """Take frames in."""
        WebSocketsSansIOProtocol.data_received(self, piece)

    async def receive(self) -> Any:
        """The next message. Cancel: safe."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self.read_on()
        return message

    def handle_cont(self, event: Frame) -> None:
        """A fragment: few bytes for each, too."""
        super().handle_cont(event)
        if len(self.frames) > MAX_FRAGMENTS:
            self.frames = [b"".join(self.frames)]

    def connection_lost(self, exc: Exception | None) -> None:
        """What was not parsed is lost."""
        self.drop_rest()
        super().connection_lost(exc)

    def schedule_ping(self) -> None:
        """At a random time within the interval: sockets that came together do not ping together."""
        delay_s = (self.ping_interval or 0.0) * random.uniform(0.5, 1.0)
        self.ping_timer = self.loop.call_later(delay_s, self.send_keepalive_ping)

    def keepalive_timeout(self) -> None:
        """A ping unanswered: what was sent before it is not read either."""
        self.pong_timer = None
        self.let_go(TRY_AGAIN_LATER)

    def handle_ping(self) -> None:
        """Answer, unless there is no room: a client could fill our memory with pings it sends."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def shutdown(self) -> None:
        """The server stops: clients resume elsewhere. What one does not read is not waited for."""
        super().shutdown()
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
