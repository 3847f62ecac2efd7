"""One client of the storm: a socket, one answer at a time, and the reader's rule of contract §3."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from headrace.schemas.reply import ReplyReader, Seen, event_text
from tests.storm.answers import Answer

RETRY_S = (0.05, 0.5)
OPEN_TIMEOUT_S = 60.0
WAYS = ("session, cursor", "request, cursor", "request, number", "request", "second drop")
"""How a client resumes; without an event it can only ask for the request as a whole."""


@dataclass
class Times:
    """Of one drop, in seconds since it."""

    open_s: float = 0.0
    live_s: float = 0.0
    """The gateway has answered a ping that came behind the subscription."""
    caught_up_s: float = 0.0
    """All that was written before the drop is there."""
    way: str = ""


@dataclass
class Client:
    """Its state survives its sockets. `problems` are what must not be."""

    number: int
    draw: random.Random
    problems: list[str] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    gateway: int = 0
    retries: int = 0

    def begin(self, answer: Answer) -> None:
        """Follow another answer."""
        self.answer, self.reader = answer, ReplyReader()
        self.text, self.cursor = "", None
        self.done = asyncio.Event()
        self._dropped_s: float | None = None
        self._goal = (0, 0)

    @property
    def place(self) -> tuple[int, int]:
        """What comes next: (attempt, sequence number)."""
        return self.reader.attempt or 0, self.reader.next_number

    async def follow(self, addresses: list[str]) -> None:
        """Read until the answer is complete; a socket that breaks is replaced.

        Cancel: the way to drop; the next `follow` resumes.
        """
        while not self.done.is_set():
            try:
                await self._visit(addresses)
            except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError):
                self.drop()
                self.retries += 1
                self.gateway = self.draw.randrange(len(addresses))
                await asyncio.sleep(self.draw.uniform(*RETRY_S))

    def drop(self) -> None:
        """Note that the socket is gone: the clock runs."""
        if self._dropped_s is None:
            self._dropped_s, self._goal = time.monotonic(), self.answer.newest

    async def _visit(self, addresses: list[str]) -> None:
        way = self._way()
        frame = self._subscription(way)
        if way == "second drop":  # before any frame came: the place is still the same
            async with self._socket(addresses) as socket:
                await socket.send(json.dumps(frame))
                socket.transport.abort()
        times = Times(way=way)
        async with self._socket(addresses) as socket:
            since_s = self._dropped_s or time.monotonic()
            times.open_s = time.monotonic() - since_s
            await socket.send(json.dumps(frame))
            await socket.send('{"type":"ping"}')
            while not self.done.is_set():
                self._take(json.loads(await socket.recv()), times, since_s)
            socket.transport.abort()

    def _socket(self, addresses: list[str]) -> Any:
        url = f"ws://{addresses[self.gateway % len(addresses)]}/v1/stream"
        return connect(
            url,
            compression=None,
            ping_interval=None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=1,
            proxy=None,
        )

    def _way(self) -> str:
        if self.cursor is None:
            return "request"
        return self.draw.choice(WAYS[:3] + WAYS[4:])

    def _subscription(self, way: str) -> dict[str, Any]:
        session = {"type": "subscribe", "session_id": self.answer.session_id}
        request = session | {"request_id": self.answer.request_id}
        if way == "request":
            return request
        if way == "request, number":
            return request | {"starting_after": self.reader.next_number - 1}
        return (request if way == "request, cursor" else session) | {"cursor": self.cursor}

    def _take(self, frame: dict[str, Any], times: Times, since_s: float) -> None:
        now_s = time.monotonic()
        if frame["type"] == "pong":
            times.live_s = now_s - since_s
        elif frame["type"] == "event":
            self._take_event(frame, times)
        elif frame["error"]["code"] == "overloaded":
            raise ConnectionError(frame["error"]["message"])
        else:
            self._wrong(f"{times.way}: {frame}")
            self.done.set()
        is_there = self.place > self._goal or self._goal == (0, 0) or self.done.is_set()
        if self._dropped_s is not None and times.live_s and is_there:
            times.caught_up_s = now_s - since_s
            self.times.append(times)
            self._dropped_s = None

    def _take_event(self, frame: dict[str, Any], times: Times) -> None:
        event = frame["event"]
        if event["id"] != self.answer.request_id:
            return  # an earlier turn of the session
        before = self.place
        seen = self.reader.see(event)
        if seen is Seen.GAP or (seen is Seen.OLD and self.answer.restart_at is None):
            self._wrong(f"{times.way}: {seen.value} {event['sequence_number']} at {before}")
        if seen is Seen.RESTART:
            self.text = ""
        if seen in (Seen.NEW, Seen.RESTART):
            self.text += event_text(event)
            self.cursor = frame["cursor"]
        if self.reader.finished and self.reader.attempt == self.answer.last_attempt:
            if self.text != self.answer.text:
                self._wrong(f"{times.way}: the text is {self.text!r}")
            self.done.set()

    def _wrong(self, what: str) -> None:
        self.problems.append(f"client {self.number}, {self.answer.request_id}: {what}")
