"""The load: sessions that ask as good clients do, and write everything down in the book."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from headrace.schemas.errors import ErrorCode
from headrace.schemas.settings import Settings
from tests.chaos.book import Asked, AskedKind, Book
from tests.chaos.plan import SessionKind, SessionPlan, Turn

SEND_LIMIT_S = 120.0
ANSWER_LIMIT_S = 180.0
MAX_ASKED_AGAIN = 10
TRANSACTION_TIMEOUT_MS = 10_000

Message = dict[str, str]


class Client:
    """Sends records; the same for all sessions."""

    def __init__(self, settings: Settings, book: Book) -> None:
        self._settings, self._book = settings, book
        self._producer = AIOKafkaProducer(
            **settings.kafka_options(), acks="all", enable_idempotence=True, linger_ms=0
        )
        self._one_transaction = asyncio.Lock()

    async def start(self) -> None:
        await self._producer.start()

    async def stop(self) -> None:
        async with asyncio.timeout(SEND_LIMIT_S):
            await self._producer.stop()

    async def partitions(self, topic: str) -> list[int]:
        """Numbers of a topic's partitions."""
        return sorted(await self._producer.partitions_for(topic))

    async def send(self, topic: str, key: str, value: bytes | None) -> str:
        """Returns the id that its answer has if it names none. Raises: TimeoutError, KafkaError."""
        async with asyncio.timeout(SEND_LIMIT_S):
            sent = await self._producer.send_and_wait(topic, value, key=key.encode())
        return f"{sent.topic}-{sent.partition}-{sent.offset}"

    async def ask(
        self, session: str, body: dict[str, Any], kind: AskedKind = AskedKind.ANSWER
    ) -> Asked:
        """Produce a request."""
        asked = self._book.add(Asked(body["request_id"], session, kind, time.monotonic(), body))
        await self.send(self._settings.topics.requests, session, orjson.dumps(body))
        return asked

    async def ask_again(self, asked: Asked, body: dict[str, Any]) -> None:
        """Produce a second record with the id of `asked`."""
        await self.send(self._settings.topics.requests, asked.session, orjson.dumps(body))

    async def poison(self, session: str, value: bytes) -> Asked:
        """Produce bytes that hold no request."""
        begun_s = time.monotonic()
        request_id = await self.send(self._settings.topics.requests, session, value)
        asked = self._book.asked.get(request_id)  # its answer may have been quicker
        if asked is None:
            asked = Asked(request_id, session, AskedKind.POISON, begun_s)
        asked.value, asked.asked_s = value, begun_s
        self._book.strays.discard(request_id)
        return self._book.add(asked)

    async def delete(self, session: str) -> None:
        """Produce a tombstone."""
        place = await self.send(self._settings.topics.requests, session, None)
        self._book.add(Asked(place, session, AskedKind.TOMBSTONE, time.monotonic()))

    async def cancel(self, asked: Asked) -> None:
        asked.cancelled = True
        body = {"action": "cancel", "request_id": asked.request_id, "session_id": asked.session}
        await self.send(self._settings.topics.control, asked.session, orjson.dumps(body))

    async def abort(self, session: str, turn_ids: Sequence[str]) -> None:
        """Produce requests in a transaction that is aborted, by us or by its timeout."""
        for request_id in turn_ids:
            self._book.add(Asked(request_id, session, AskedKind.NEVER, time.monotonic()))
        async with self._one_transaction, asyncio.timeout(SEND_LIMIT_S):
            producer = AIOKafkaProducer(
                **self._settings.kafka_options(),
                transactional_id=f"{self._settings.topic_prefix}-chaos",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            try:
                await producer.start()
                await producer.begin_transaction()
                for request_id in turn_ids:
                    body = {"request_id": request_id, "prompt": "x", "max_tokens": 2}
                    await producer.send_and_wait(
                        self._settings.topics.requests, orjson.dumps(body), key=session.encode()
                    )
                await producer.abort_transaction()
            except KafkaError:
                pass  # Kafka is away: nothing was sent, or it aborts what is left open by itself
            finally:
                await producer.stop()


class Session:
    """One session of the plan, and what its client believes of the conversation."""

    def __init__(self, plan: SessionPlan, client: Client, book: Book) -> None:
        self._plan, self._client, self._book = plan, client, book
        self._messages: list[Message] = []
        self._turns = 0

    async def run(self) -> None:
        """From its first request to its last answer. Bounded; what is not answered is left."""
        steps = {
            SessionKind.ONE_TURN: self._converse,
            SessionKind.CONVERSATION: self._converse,
            SessionKind.PIPELINED: self._pipeline,
            SessionKind.BURST: self._burst,
            SessionKind.CANCELLED: self._cancel,
            SessionKind.DUPLICATE: self._duplicate,
            SessionKind.TOMBSTONE: self._begin_anew,
            SessionKind.POISON: self._poison,
            SessionKind.ABORTED: self._abort,
        }
        await steps[self._plan.kind]()

    async def _converse(self) -> None:
        for turn in self._plan.turns:
            if not await self._turn(turn):
                return
            await asyncio.sleep(self._plan.pause_s)

    async def _turn(self, turn: Turn) -> bool:
        asked = await self._append(turn, self._turns)
        return await self._settled(asked, turn)

    async def _append(self, turn: Turn, number: int) -> Asked:
        body = _body(turn) | {"context": "append", "turn": number}
        return await self._client.ask(self._plan.name, body)

    async def _settled(self, asked: Asked, turn: Turn) -> bool:
        """Wait for the answer; a conversation that the server has lost is sent whole."""
        for number in range(1, MAX_ASKED_AGAIN + 1):
            if not await answered(asked):
                return False
            if asked.error_code != ErrorCode.SESSION_OUT_OF_SYNC:
                break
            self._book.num_asked_again += 1
            body = _body(turn) | {
                "request_id": f"{turn.request_id}-again{number}",
                "context": "replace",
                "messages": [*self._messages, {"role": "user", "content": turn.text}],
            }
            asked = await self._client.ask(self._plan.name, body)
        if asked.error_code is not None:
            return False
        self._messages += [
            {"role": "user", "content": turn.text},
            {"role": "assistant", "content": asked.reply.text},
        ]
        self._turns += 1
        return True

    async def _pipeline(self) -> None:
        sent = [await self._append(turn, number) for number, turn in enumerate(self._plan.turns)]
        for asked in sent:
            if not await answered(asked):
                return
        for asked, turn in zip(sent, self._plan.turns, strict=True):
            if not await self._settled(asked, turn):
                return

    async def _burst(self) -> None:
        bodies = [_body(turn) | {"context": "replace"} for turn in self._plan.turns]
        sent = [await self._client.ask(self._plan.name, body) for body in bodies]
        for asked in sent:
            await answered(asked)

    async def _cancel(self) -> None:
        (turn,) = self._plan.turns
        asked = await self._client.ask(self._plan.name, _body(turn) | {"context": "replace"})
        await asyncio.sleep(self._plan.pause_s)
        await self._client.cancel(asked)
        await answered(asked)

    async def _duplicate(self) -> None:
        """The second one differs: the first counts all the same."""
        (turn,) = self._plan.turns
        body = _body(turn) | {"context": "replace"}
        asked = await self._client.ask(self._plan.name, body)
        await asyncio.sleep(self._plan.pause_s)
        other = {"max_tokens": 3, "messages": [{"role": "user", "content": "another"}]}
        await self._client.ask_again(asked, body | other)
        await answered(asked)

    async def _begin_anew(self) -> None:
        *first, last = self._plan.turns
        for turn in first:
            if not await self._turn(turn):
                return
        await self._client.delete(self._plan.name)
        self._messages, self._turns = [], 0
        await self._turn(last)

    async def _poison(self) -> None:
        await answered(await self._client.poison(self._plan.name, self._plan.payload))

    async def _abort(self) -> None:
        await self._client.abort(self._plan.name, [f"{self._plan.name}-{n}" for n in range(2)])


async def answered(asked: Asked) -> bool:
    """Wait for its last event; False: none came in ANSWER_LIMIT_S."""
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await asked.finished.wait()
    except TimeoutError:
        return False
    return True


def _body(turn: Turn) -> dict[str, Any]:
    messages = [{"role": "user", "content": turn.text}]
    return {"request_id": turn.request_id, "messages": messages, **turn.options}
