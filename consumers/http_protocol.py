"""The connection under every HTTP answer: uvicorn's, with bounds for clients that do not read, or
send the head of a request without end.

uvicorn closes such a connection once its buffer is empty, which is never; a stream's own bound
(`sse.py`) ends the work, and this one what is left of the connection.
"""

import asyncio
import socket
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.consumers.in_pieces import InPieces

KERNEL_BUFFER_BYTES = 64 * 1024
"""What one client may leave in the kernel (Linux takes twice as much), which lets it grow to 4 MB
by itself: 200 clients that do not read would hold 800 MB. A window for 1 MB/s over 100 ms.
"""

LINGER_S = 120.0
"""How long a client may take to read what was sent; then the connection is cut."""


HEAD_S = 30.0
"""For a client to send the head of its first request, or to end one that it began."""

MAX_HEAD_BYTES = 64 * 1024
"""Of a head that comes in more than one read; the parser itself has no limit."""


def bound_kernel_buffer(transport: asyncio.Transport) -> None:
    """Set the size of a connection's send buffer, which the kernel grows no more."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)


class _Flow(FlowControl):
    """uvicorn's; but that there is room again is for its protocol to act on."""

    def __init__(self, transport: asyncio.Transport, read_on: Callable[[], None]) -> None:
        super().__init__(transport)
        self._read_on = read_on

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._read_on()


class HttpProtocol(InPieces, HttpToolsProtocol):
    """For `uvicorn.Config(http=…)`.

    NOTE: uvicorn reads on after each answer, however many requests wait: a client that sends them
    without end took 180 MB a second.
    """

    _cut: asyncio.TimerHandle | None = None
    _late: asyncio.TimerHandle | None = None
    """Runs while a head is awaited."""
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound the kernel's buffer, and notice at once when it is full."""
        super().connection_made(transport)
        # NOTE: not 0, at which asyncio's TLS pauses a writer of an empty buffer, for ever
        transport.set_write_buffer_limits(high=1)
        bound_kernel_buffer(transport)
        self.flow = _Flow(transport, self.read_on)
        self._await_head()

    @property
    def is_full(self) -> bool:
        """Whether a body is to be taken first, or a request waits for the answer to another."""
        return self.flow.read_paused or bool(self.pipeline)

    def parse(self, piece: bytes) -> None:
        """Take requests in; a head that is too long is the connection's end."""
        if self._late is not None:
            self._head_bytes += len(piece)
        HttpToolsProtocol.data_received(self, piece)
        if self.transport.get_protocol() is not self:  # it is a WebSocket now
            self.drop_rest()
            return
        if self._late is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._head_came()
            self.send_400_response("The head of the request is too long.")

    def read_on(self) -> None:
        if self.transport.get_protocol() is self:
            super().read_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.read_on()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_came()
        self._late = self.loop.call_later(HEAD_S, self._end_late)

    def _end_late(self) -> None:
        """Not while the rest of the head may have come, and was not parsed."""
        if self.is_full:
            self._await_head()
        else:
            self.transport.close()

    def _head_came(self) -> None:
        late, self._late, self._head_bytes = self._late, None, 0
        if late is not None:
            late.cancel()

    def pause_writing(self) -> None:
        """The client does not keep up: from here it has `LINGER_S`."""
        super().pause_writing()
        self._cut = self.loop.call_later(LINGER_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._spare()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._spare()
        self._head_came()
        self.drop_rest()
        super().connection_lost(exc)

    def _spare(self) -> None:
        cut, self._cut = self._cut, None
        if cut is not None:
            cut.cancel()
