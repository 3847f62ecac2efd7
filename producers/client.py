"""The client for applications: generations as async iterators, over any of several gateways.

It reconnects by itself and goes on from its place in the log: what the application reads is what an
uncut connection would have given. Over Kafka itself, see `headrace.producers.request_producer`.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator
from typing import Any, Self

import orjson
from websockets.exceptions import ConnectionClosed

from headrace.producers.client_answer import Answer
from headrace.producers.client_dialer import Addresses, Dialer
from headrace.producers.client_errors import AnswerFailedError, OutOfTouchError, Place
from headrace.producers.client_events import Chunk, Completed, Event, Failed, Restarted
from headrace.producers.client_follow import RequestFollow, SessionFollow
from headrace.producers.client_link import SEND_TIMEOUT_S, Link
from headrace.schemas.errors import (
    ErrorCode,
    HeadraceError,
    RequestError,
    UnavailableError,
    told_error,
)
from headrace.schemas.request import validate_request
from headrace.schemas.request_id import new_request_id

__all__ = [
    "Answer",
    "AnswerFailedError",
    "Chunk",
    "Client",
    "Completed",
    "Event",
    "Failed",
    "HeadraceError",
    "OutOfTouchError",
    "Place",
    "RequestError",
    "Restarted",
]

DEFAULT_MAX_WAIT_S = 120.0
"""As long as a gateway itself waits for a worker's next event."""


class Client:
    """`async with Client("http://127.0.0.1:8080") as client:`; connects when it is first needed.

    Several URLs are gateways of one pipeline: any of them will do. `max_wait_s` bounds the wait for
    the next event of an answer, whatever the reason: no gateway, no worker, a long queue.
    """

    def __init__(
        self,
        *urls: str,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_wait_s: float = DEFAULT_MAX_WAIT_S,
    ) -> None:
        """Raises: SettingsError for what is no URL of a gateway."""
        self._addresses = Addresses.of(urls or ("http://127.0.0.1:8080",), api_key, tls)
        self._max_wait_s = max_wait_s
        self._links: list[Link] = []
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancels what is still being generated, except in the background. Takes 5 s at most."""
        self._is_closed = True
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.close(), name="client.close")

    def generate(
        self,
        text: str | None = None,
        *,
        session_id: str | None = None,
        request_id: str | None = None,
        background: bool = False,
        **fields: Any,
    ) -> Answer:
        """Ask, and read the answer: `text` is a user's message; else give `messages` or `prompt`.

        `fields` are those of the contract: `max_tokens`, `temperature`, … Raises: RequestError for
        a field that is wrong.
        Delivery: a request that may be lost is sent again; its id, made here, makes it count once.
        """
        body = fields | {"request_id": request_id or new_request_id()}
        if text is not None:
            body["messages"] = [{"role": "user", "content": text}]
        if session_id is not None:
            body["session_id"] = session_id
        body = {name: value for name, value in body.items() if value is not None}
        validate_request(body)
        _check_writable(body)
        name = body["request_id"]
        return self._answer(
            RequestFollow(name, session_id or name, body=body), background=background
        )

    async def complete(self, text: str | None = None, **fields: Any) -> Completed:
        """Like `generate`, and wait for the whole answer: its text, usage and timings.

        Raises: RequestError, AnswerFailedError, OutOfTouchError.
        Cancel: the generation is cancelled, too.
        """
        async with self.generate(text, stream=False, **fields) as answer:
            return await answer.whole()

    def resume(
        self,
        request_id: str,
        *,
        session_id: str | None = None,
        starting_after: int | None = None,
        cursor: str | None = None,
    ) -> Answer:
        """Go on reading an answer, from its start without a place; leaving it cancels nothing."""
        if starting_after is not None and cursor is not None:
            text = "cursor and starting_after exclude each other"
            raise RequestError(ErrorCode.INVALID_VALUE, text, "cursor")
        follow = RequestFollow(
            request_id, session_id or request_id, starting_after=starting_after, cursor=cursor
        )
        return self._answer(follow, background=True)

    async def cancel(self, request_id: str, *, session_id: str | None = None) -> None:
        """End a generation, begun or not; returns once the cancel is in Kafka.

        Raises: RequestError, UnavailableError. Cancel: it may have been sent.
        """
        order = self._link().cancel(request_id, session_id or request_id)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await order.confirmed.wait()
        except TimeoutError as problem:
            raise UnavailableError("a gateway", self._max_wait_s) from problem
        if order.problem is not None:
            raise order.problem

    async def subscribe(
        self, session_id: str, *, cursor: str | None = None, from_start: bool = False
    ) -> AsyncGenerator[Event, None]:
        """All events of a session, whoever asks there, on a socket of its own; it never ends.

        From now on, from behind `cursor`, or from the log's beginning. Until the first event has
        come, a subscription from now on has no place: what comes while it is cut is not seen.
        Raises: RequestError (`resume_gap`), OutOfTouchError without a gateway for `max_wait_s`.
        """
        dialer = Dialer(self._addresses)
        follow = SessionFollow(session_id, cursor=cursor, from_start=from_start)
        heard_s = time.monotonic()
        while True:
            try:
                socket = await dialer.open()
                try:
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await socket.send(orjson.dumps(follow.frame()).decode())
                    while True:
                        frame = orjson.loads(await socket.recv(decode=False))
                        dialer.went_well()
                        for event in _session_events(follow, frame):
                            yield event
                finally:
                    heard_s = time.monotonic()
                    await socket.close()
            except (UnavailableError, ConnectionClosed, TimeoutError) as problem:
                waited_s = time.monotonic() - heard_s
                if waited_s >= self._max_wait_s:
                    place = Place(None, session_id, follow.cursor)
                    raise OutOfTouchError(place, waited_s, str(problem)) from problem
            await asyncio.sleep(dialer.next_pause_s())

    def _answer(self, follow: RequestFollow, *, background: bool) -> Answer:
        return Answer(follow, self._attach, background=background, max_wait_s=self._max_wait_s)

    def _attach(self, answer: Answer) -> Link:
        if any(link.follows(answer.request_id) for link in self._links):
            text = "this client reads this request already"
            raise RequestError(ErrorCode.INVALID_VALUE, text, "request_id")
        link = self._link()
        link.add(answer)
        return link

    def _link(self) -> Link:
        if self._is_closed:
            raise RuntimeError("this client is closed")
        for link in self._links:
            if link.has_room:
                return link
        link = Link(Dialer(self._addresses))
        link.start()
        self._links.append(link)
        return link


def _check_writable(body: dict[str, Any]) -> None:
    """Refuse what no frame can hold, in fields that the contract does not know."""
    try:
        orjson.dumps(body)
    except TypeError as problem:  # orjson's error is one
        raise RequestError(ErrorCode.INVALID_VALUE, str(problem)) from problem


def _session_events(follow: SessionFollow, frame: dict[str, Any]) -> list[Event]:
    """Raises: RequestError; UnavailableError where the gateway asks for another try."""
    if frame.get("type") == "error":
        problem = told_error(frame["error"])
        if problem.code is ErrorCode.OVERLOADED:
            raise UnavailableError("the gateway", 0.0, problem.message)
        raise problem
    return follow.take(frame) if frame.get("type") == "event" else []
