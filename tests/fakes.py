"""Doubles that several tests share, each named by how it behaves."""

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from headrace.models.stop_strings import StopMatcher
from headrace.streams.session_store import ChatMessage

PATIENCE_S = 5.0
"""How long a test waits for what must come."""


class Changes:
    """Wakes a test whenever one of its doubles was called, so that nothing has to sleep."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def notify(self) -> None:
        for event in self._waiting:
            event.set()

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until `true()`; asked after each change. Raises: TimeoutError after PATIENCE_S."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not true():
                    changed.clear()
                    await changed.wait()
        finally:
            self._waiting.discard(changed)


class ByteStream:
    """A text stream whose token ids are UTF-8 bytes; ids from 256 on are special, without text."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._matcher.stopped

    def push(self, token_id: int) -> str:
        if self.stopped or token_id > 255:
            return ""
        return self._matcher.push(self._utf8.decode(bytes([token_id])))

    def finish(self) -> str:
        if self.stopped:
            return ""
        return self._matcher.push(self._utf8.decode(b"", final=True)) + self._matcher.finish()


class ByteEncoder:
    """Bytes as token ids, messages behind each other."""

    def encode_messages(self, messages: Sequence[ChatMessage]) -> list[int]:
        return self.encode_prompt("".join(message["content"] for message in messages))

    def encode_prompt(self, text: str) -> list[int]:
        return list(text.encode())

    def extend(
        self,
        history_messages: Sequence[ChatMessage],
        history_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
    ) -> list[int]:
        return [*history_ids, *self.encode_messages(new_messages)]

    def extend_prompt(self, history_ids: Sequence[int], text: str) -> list[int]:
        return [*history_ids, *self.encode_prompt(text)]

    def fit(
        self, messages: Sequence[ChatMessage], limit_tokens: int
    ) -> tuple[list[ChatMessage], list[int]]:
        return list(messages), self.encode_messages(messages)[:limit_tokens]


class DelayingProxy:
    """A TCP proxy that can hold back, per direction, what goes through it.

    While `requests` or `replies` is cleared, bytes of that direction wait in the proxy; they go on
    when it is set again, also where the client has gone meanwhile (like a packet that is late).
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self.requests, self.replies = asyncio.Event(), asyncio.Event()
        self.requests.set()
        self.replies.set()
        self.num_requests = 0
        """Pieces of requests that reached the proxy."""
        self.num_connections = 0
        self.changes = Changes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["DelayingProxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await _closed(self._writers)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        target_reader, target_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, target_writer]
        for work in (
            self._pump(reader, target_writer, lambda: self.requests, count=True),
            self._pump(target_reader, writer, lambda: self.replies, count=False),
        ):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate: Callable[[], asyncio.Event],
        *,
        count: bool,
    ) -> None:
        try:
            while data := await reader.read(65536):
                passed = gate()
                if count:
                    self.num_requests += 1
                    self.changes.notify()
                await passed.wait()
                writer.write(data)
                await writer.drain()
                self.changes.notify()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def next_request(self) -> None:
        """Wait until something more is sent."""
        num_seen = self.num_requests
        await self.changes.until(lambda: self.num_requests > num_seen)

    def hold_requests(self) -> asyncio.Event:
        """Hold what is sent from now on until the event that is returned is set.

        A later call holds later bytes under an event of its own; `requests.set()` alone lets new
        ones pass while older ones still wait.
        """
        self.requests = asyncio.Event()
        return self.requests

    def pass_requests(self) -> None:
        """Let new bytes pass; held ones wait for their own event."""
        self.requests = asyncio.Event()
        self.requests.set()


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Accepts connections, reads what comes, and never answers; yields its port."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            pass
        writer.close()  # else one that is accepted during the end below would never be closed

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await end_server(server, writers)


async def end_server(server: asyncio.Server, writers: Sequence[asyncio.StreamWriter]) -> None:
    """Close it and its connections, also those whose handlers have not begun: these end by
    themselves, as their clients are gone, and are waited for.
    """
    server.close()
    await _closed(writers)
    async with asyncio.timeout(5):
        while handlers := _handlers():  # a connection that is accepted now begins another
            await asyncio.wait(handlers)


def _handlers() -> list["asyncio.Task[Any]"]:
    names = ("accept", "talk", "_accept_connection2")
    return [it for it in asyncio.all_tasks() if getattr(it.get_coro(), "__name__", "") in names]


async def _closed(writers: Sequence[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        with suppress(ConnectionError):
            await writer.wait_closed()
