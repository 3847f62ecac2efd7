"""The connection under every HTTP answer: uvicorn's, with a bound for clients that do not read.

uvicorn closes such a connection once its buffer is empty, which is never; a stream's own bound
(`sse.py`) ends the work, and this one what is left of the connection.
"""

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KERNEL_BUFFER_BYTES = 64 * 1024
"""What one client may leave in the kernel (Linux takes twice as much), which lets it grow to 4 MB
by itself: 200 clients that do not read would hold 800 MB. A window for 1 MB/s over 100 ms.
"""

LINGER_S = 120.0
"""How long a client may take to read what was sent; then the connection is cut."""


def bound_kernel_buffer(transport: asyncio.Transport) -> None:
    """Set the size of a connection's send buffer, which the kernel grows no more."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)


class HttpProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=…)`."""

    _cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound the kernel's buffer, and notice at once when it is full."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        bound_kernel_buffer(transport)

    def pause_writing(self) -> None:
        """The client does not keep up: from here it has `LINGER_S`."""
        super().pause_writing()
        self._cut = self.loop.call_later(LINGER_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._spare()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._spare()
        super().connection_lost(exc)

    def _spare(self) -> None:
        cut, self._cut = self._cut, None
        if cut is not None:
            cut.cancel()
