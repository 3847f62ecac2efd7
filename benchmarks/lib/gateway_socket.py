"""A WebSocket client that costs next to nothing: it shakes hands, reads frame headers, and notes
which event came when.

Not a client to use: it trusts its server, and takes frames of 64 KiB at most in one piece.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import orjson

TEXT, CLOSE, PING = 0x81, 0x88, 0x89
_PONG = 0x8A
_MASK = b"\0\0\0\0"  # masked, as a client must; zeros leave the payload as it is

_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_CURSOR = re.compile(rb'"cursor":"([^"]+)"')

OnEvent = Callable[[int, float], None]


class LeanSocket(asyncio.Protocol):
    """One socket; `opened`, `answered` (a pong frame came) and `closed` are its milestones."""

    __slots__ = (
        "_buffer",
        "_on_event",
        "_path",
        "_transport",
        "answered",
        "close_code",
        "closed",
        "first_event",
        "last_event",
        "num_events",
        "opened",
    )

    def __init__(self, path: str, on_event: OnEvent | None) -> None:
        loop = asyncio.get_running_loop()
        self._path, self._on_event = path, on_event
        self._buffer = b""
        self._transport: Any = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.answered: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.close_code: int | None = None
        self.num_events = 0
        self.first_event = self.last_event = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.opened, self.answered, self.closed):
            if not future.done():
                future.set_result(None)

    def data_received(self, data: bytes) -> None:
        now_ms = time.time() * 1000
        data = self._buffer + data
        if not self.opened.done():
            head, separator, data = data.partition(b"\r\n\r\n")
            if not separator:
                self._buffer = head
                return
            if b" 101 " not in head.split(b"\r\n", 1)[0]:
                raise ConnectionError(head[:200].decode())
            self.opened.set_result(None)
        self._buffer = self._read_frames(data, now_ms)

    def _read_frames(self, data: bytes, now_ms: float) -> bytes:
        """Take each whole frame; returns what is left over."""
        while len(data) >= 2:
            size, begin = data[1], 2
            if size == 126:
                size, begin = int.from_bytes(data[2:4], "big"), 4
            if len(data) < begin + size or (begin == 4 and len(data) < 4):
                break
            self._take(data[0], data[begin : begin + size], now_ms)
            data = data[begin + size :]
        return data

    def _take(self, kind: int, payload: bytes, now_ms: float) -> None:
        if kind == TEXT and payload.startswith(b'{"type":"event"'):
            self.first_event = self.first_event or payload
            self.last_event = payload
            self.num_events += 1
            if self._on_event is not None:
                self._on_event(int(payload[payload.rindex(b'"n":') + 4 : -2]), now_ms)
        elif kind == TEXT:
            if not self.answered.done():
                self.answered.set_result(None)
        elif kind == PING:
            self._write(_PONG, payload)
        elif kind == CLOSE:
            self.close_code = int.from_bytes(payload[:2], "big")
            self._transport.close()

    def send(self, **frame: Any) -> None:
        """Send a text frame."""
        self._write(TEXT, orjson.dumps(frame))

    def _write(self, kind: int, payload: bytes) -> None:
        size = bytes([0x80 | len(payload)])
        if len(payload) > 125:
            size = b"\xfe" + len(payload).to_bytes(2, "big")
        self._transport.write(bytes([kind]) + size + _MASK + payload)

    def stop_reading(self) -> None:
        """From now on a client that is wedged: alive, and deaf."""
        self._transport.pause_reading()

    def read_again(self) -> None:
        self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    @staticmethod
    def place(event: bytes) -> tuple[str, int]:
        """Cursor and sequence number in an event frame."""
        cursor, number = _CURSOR.search(event), _SEQUENCE_NUMBER.search(event)
        assert cursor is not None
        assert number is not None
        return cursor[1].decode(), int(number[1])
