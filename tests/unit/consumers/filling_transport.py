"""A connection whose client does not read, without a network."""

import asyncio
from typing import Any


class FillingTransport(asyncio.Transport):
    """Keeps what is written for as long as its client does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = b""
        self.aborted = False
        self.protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    getsockname = getpeername

    def setsockopt(self, *_: int) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.unread += data

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        pass

    resume_reading = close = pause_reading

    def abort(self) -> None:
        self.aborted = True
