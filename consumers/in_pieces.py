"""What a connection brings is parsed in small pieces, each in a turn of the loop of its own.

So a client that sends thousands of frames or requests in one read keeps nobody waiting, and what
its own earlier ones have not made room for stays unparsed: then nothing more is read.
"""

import asyncio

PIECE_BYTES = 4 * 1024
"""A read may bring 256 KB, 40,000 frames that take half a second. Of the smallest frames this is a
few milliseconds of work.
"""


class InPieces:
    """Goes before the protocol's class: `data_received` calls `parse` for each piece.

    Call `read_on` when `is_full` may have changed, and `drop_rest` when the connection is lost.
    """

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _received: bytearray | None = None
    """What is not parsed yet."""
    _turn: asyncio.Handle | None = None
    """Parses the next piece."""

    @property
    def is_full(self) -> bool:
        """Whether what was parsed has to be taken before more is."""
        raise NotImplementedError

    def parse(self, piece: bytes) -> None:
        """Take `piece` in. What it raises is the end of the connection."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Parse `data`, or keep it for later."""
        if self._received is None:
            self._received = bytearray()
        self._received += data
        if self._turn is None and not self.is_full:
            self._take_piece()
        else:
            self.transport.pause_reading()

    def _take_piece(self) -> None:
        self._turn = None
        if self._received is not None:
            piece = bytes(self._received[:PIECE_BYTES])
            del self._received[:PIECE_BYTES]
            self.parse(piece)
            self.read_on()

    def read_on(self) -> None:
        """Parse what is left, in a later turn; then read again."""
        if self.transport.is_closing():
            self.drop_rest()
        elif self._received:
            self.transport.pause_reading()
            if self._turn is None and not self.is_full:
                self._turn = self.loop.call_soon(self._take_piece)
        elif self.is_full:
            self.transport.pause_reading()
        else:
            self._received = None
            self.transport.resume_reading()

    def drop_rest(self) -> None:
        """Forget what was not parsed."""
        self._received = None
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.cancel()
