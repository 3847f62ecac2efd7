"""A TCP proxy in front of Redis: it can be slow, silent, or cut every connection.

What is held back goes on when it flows again, also for a client that has gone meanwhile, as bytes
that were late on a network do. Knows nothing of the Redis protocol.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

_CHUNK_BYTES = 65_536
_MAX_HELD_CHUNKS = 256
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close with a reset


class RedisProxy:
    """Passes bytes on to `host:port`. Set `latency_s` (per direction) at any time."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self.latency_s = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["RedisProxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for pump in self._pumps:
                pump.cancel()
            if self._pumps:
                await asyncio.wait(self._pumps, timeout=5)

    def silence(self) -> None:
        """Take connections and bytes, and pass nothing on."""
        self._flowing.clear()

    def flow(self) -> None:
        """End `silence` and `refuse`; what was held goes on first."""
        self._refusing = False
        self._flowing.set()

    def refuse(self) -> None:
        """Reset every connection, and each new one, until `flow`."""
        self._refusing = True
        self.cut()

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for writer in list(self._open):
            _reset(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            _reset(writer)
            return
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
        except OSError:  # Redis is down, so its clients see a reset, too
            _reset(writer)
            return
        self._open |= {writer, target_writer}
        try:
            async with asyncio.TaskGroup() as both:
                for source, sink in ((reader, target_writer), (target_reader, writer)):
                    pump = both.create_task(self._pump(source, sink))
                    self._pumps.add(pump)
                    pump.add_done_callback(self._pumps.discard)
        finally:
            for one in (writer, target_writer):
                self._open.discard(one)
                one.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        held = _Held(_MAX_HELD_CHUNKS)
        async with asyncio.TaskGroup() as both:
            both.create_task(_read(source, held, lambda: self.latency_s))
            both.create_task(self._write(held, sink))

    async def _write(self, held: "_Held", sink: asyncio.StreamWriter) -> None:
        """Until the end of what is read; a sink that is gone takes the rest nowhere."""
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await held.get()
            if not data:
                break
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await self._flowing.wait()
            with suppress(ConnectionError):
                if not sink.is_closing():
                    sink.write(data)
                    await sink.drain()
        sink.close()


_Held = asyncio.Queue[tuple[float, bytes]]


async def _read(source: asyncio.StreamReader, held: _Held, latency_s: Callable[[], float]) -> None:
    loop = asyncio.get_running_loop()
    data = b"-"
    while data:
        try:
            data = await source.read(_CHUNK_BYTES)
        except ConnectionError:
            data = b""
        await held.put((loop.time() + latency_s(), data))


def _reset(writer: asyncio.StreamWriter) -> None:
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
