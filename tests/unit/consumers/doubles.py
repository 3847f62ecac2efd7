"""Doubles of the gateway's neighbours, named by behaviour; also used by the integration and
browser tests.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError
from headrace.schemas.event import Completion, EventWriter, Timings, Usage
from headrace.schemas.settings import Settings
from headrace.schemas.topics import partition_of

TOPIC_PARTITIONS = 4


def writer(request_id: str, session_id: str, *, attempt: int = 1) -> EventWriter:
    """Builds events as a worker would."""
    return EventWriter(request_id, session_id, attempt, 1_796_000_000, "test-model", "fp-test")


def completion(reason: str = "stop", *, tokens: int = 3) -> Completion:
    """The end of an answer."""
    return Completion(reason, Usage(5, tokens), Timings(ttft_ms=12.0, decode_ms=30.0), 7, {})


def answer(
    request_id: str, session_id: str, words: Sequence[str], *, attempt: int = 1
) -> list[bytes]:
    """The events of a whole answer, one word each; the last one completes it."""
    build = writer(request_id, session_id, attempt=attempt)
    last = len(words) - 1
    return [
        build.chunk(number, word, completion=completion() if number == last else None).value
        for number, word in enumerate(words)
    ]


def failure(request_id: str, session_id: str, error: RequestError, *, number: int = 0) -> bytes:
    """A `failed` event."""
    return writer(request_id, session_id).failed(number, error).value


class ResponseWriter:
    """Writes hand-made events to the responses topic, where a worker would have put them."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topics.responses
        self._producer = AIOKafkaProducer(
            bootstrap_servers=settings.kafka, enable_idempotence=True, acks="all"
        )

    async def __aenter__(self) -> "ResponseWriter":
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def write(
        self,
        value: bytes,
        *,
        session_id: str,
        tenant: str | None = None,
        partition: int | None = None,
        worker: str | None = None,
    ) -> tuple[int, int]:
        """Write one record and wait for its place: (partition, offset)."""
        about = {"headrace-tenant": tenant, "headrace-worker": worker}
        headers = [(name, text.encode()) for name, text in about.items() if text]
        key = session_id.encode()
        number = partition_of(key, TOPIC_PARTITIONS) if partition is None else partition
        placed = await self._producer.send_and_wait(
            self._topic, value, key=key, partition=number, headers=headers
        )
        return int(placed.partition), int(placed.offset)


@dataclass
class RecordingSink:
    """A request sink that remembers what it was given and answers nothing."""

    submitted: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    traces: list[Sequence[tuple[str, bytes]]] = field(default_factory=list)
    refusals: list[HeadraceError] = field(default_factory=list)
    """What the next submissions raise."""

    async def submit(
        self,
        body: dict[str, Any],
        *,
        tenant: str,
        session_id: str,
        trace: Sequence[tuple[str, bytes]],
    ) -> None:
        self.submitted.append(body | {"_session": session_id})
        self.tenants.append(tenant)
        self.traces.append(trace)
        if self.refusals:
            raise self.refusals.pop(0)

    async def cancel(self, request_id: str, *, session_id: str, tenant: str) -> None:
        self.cancelled.append(request_id)

    async def delete_session(self, session_id: str, *, tenant: str) -> None:
        self.deleted.append((tenant, session_id))


class ScriptedSink(RecordingSink):
    """A sink and worker in one: answers each request by writing its script to the real log.

    The words of an answer come `pause_s` apart; a cancel ends it. Before the word that
    `hold_before` names it pauses until `go_on`.
    """

    def __init__(self, events: ResponseWriter, words: Sequence[str], *, pause_s: float = 0.0):
        super().__init__()
        self.words, self.pause_s = list(words), pause_s
        self.error: RequestError | None = None
        self.silent = False
        self.worker: str | None = None
        self._held_word: int | None = None
        self._going_on = asyncio.Event()
        self._events = events
        self._tasks: asyncio.TaskGroup = asyncio.TaskGroup()
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def __aenter__(self) -> "ScriptedSink":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        for task in self._running.values():
            task.cancel()
        await self._tasks.__aexit__(*problem)

    def hold_before(self, word: int | None) -> None:
        """Pause each answer there; those that paused before go on."""
        self._held_word = word
        self._going_on.set()
        self._going_on = asyncio.Event()

    def go_on(self) -> None:
        """Write what is held back."""
        self._going_on.set()

    async def cancel(self, request_id: str, **others: Any) -> None:
        await super().cancel(request_id, **others)
        self.go_on()

    async def idle(self) -> None:
        """Wait until every answer is written."""
        if self._running:
            await asyncio.wait(self._running.values())

    async def submit(self, body: dict[str, Any], **others: Any) -> None:
        await super().submit(body, **others)
        name = (others["tenant"], body["request_id"])
        if not self.silent and name not in self._running:
            self._running[name] = self._tasks.create_task(
                self._answer(body, others["session_id"], others["tenant"])
            )

    async def _answer(self, body: dict[str, Any], session_id: str, tenant: str) -> None:
        for number, value in enumerate(script(body, session_id, self.words, self.error)):
            if number == self._held_word:
                await self._going_on.wait()
            await asyncio.sleep(self.pause_s)
            stop = body["request_id"] in self.cancelled
            if stop:
                build = writer(body["request_id"], session_id)
                number = orjson.loads(value)["sequence_number"]
                value = build.chunk(number, "", completion=completion("cancelled")).value
            await self._events.write(
                value, session_id=session_id, tenant=tenant, worker=self.worker
            )
            if stop:
                return


def script(
    body: dict[str, Any], session_id: str, words: Sequence[str], error: RequestError | None
) -> Iterator[bytes]:
    """The events that a worker would write for `body`."""
    request_id = body["request_id"]
    if error is not None:
        yield failure(request_id, session_id, error)
    elif body.get("stream") is False:
        yield writer(request_id, session_id).whole("".join(words), completion()).value
    else:
        yield from answer(request_id, session_id, words)


def overloaded() -> RequestError:
    """An error that a worker may answer with."""
    return RequestError(ErrorCode.OVERLOADED, "the queue is full")
