"""Hand-made answers, written to the responses topic at the pace of a model."""

import asyncio
import heapq
import random
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer

from headrace.schemas.request_id import new_request_id
from headrace.schemas.settings import Settings
from headrace.schemas.topics import partition_of
from tests.unit.consumers.doubles import completion, writer

TICK_S = 0.02


@dataclass
class Answer:
    """One answer: what is to be written of it, and what Kafka has of it.

    `restart_at`: after so many events its journal is lost, and a larger attempt begins anew.
    """

    request_id: str
    session_id: str
    words: list[str]
    restart_at: int | None = None
    records: list[tuple[int, int]] = field(default_factory=list)
    """(attempt, sequence number) of each record to write, repeats included."""
    num_sent: int = 0
    num_written: int = 0
    """Records that the brokers have."""

    @property
    def text(self) -> str:
        """What a client has in the end."""
        return "".join(self.words)

    @property
    def last_attempt(self) -> int:
        return 1 if self.restart_at is None else 2

    @property
    def newest(self) -> tuple[int, int]:
        """The furthest (attempt, sequence number) that the brokers have; (0, 0) for none."""
        return max(self.records[: self.num_written], default=(0, 0))

    def value(self, attempt: int, number: int) -> bytes:
        build = writer(self.request_id, self.session_id, attempt=attempt)
        ends = number == len(self.words) - 1
        return build.chunk(
            number, self.words[number], completion=completion() if ends else None
        ).value


def make_answer(draw: random.Random, number: int, num_words: int) -> Answer:
    """Its length, its repeats and its second attempt are drawn; half have ids of the gateway."""
    request_id = new_request_id() if draw.random() < 0.5 else f"storm-{draw.getrandbits(64):016x}"
    count = draw.randint(max(2, num_words // 2), num_words)
    restart_at = draw.randint(1, count - 1) if draw.random() < 0.03 else None
    answer = Answer(
        request_id,
        f"session-{number}",
        [f"{number}.{place} " for place in range(count)],
        restart_at,
    )
    records = [(1, place) for place in range(restart_at or count)]
    if restart_at is not None:
        records += [(2, place) for place in range(count)]
    for attempt, place in records:
        answer.records.append((attempt, place))
        if draw.random() < 0.03:  # a worker that died after it wrote: its successor writes again
            earlier = max(0, place - draw.randint(0, 2))
            answer.records += [(attempt, again) for again in range(earlier, place + 1)]
    return answer


class AnswerWriter:
    """Writes the answers of one round; enter it once, `write` a round at a time."""

    def __init__(self, settings: Settings, num_partitions: int) -> None:
        self._topic, self._num_partitions = settings.topics.responses, num_partitions
        self._producer = AIOKafkaProducer(
            bootstrap_servers=settings.kafka, enable_idempotence=True, acks="all", linger_ms=5
        )

    async def __aenter__(self) -> "AnswerWriter":
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def write(self, answers: list[Answer], draw: random.Random, *, seconds: float) -> None:
        """All of `answers`, each from a moment in the first third on to one before the end."""
        loop = asyncio.get_running_loop()
        due: list[tuple[float, int]] = []
        pauses: list[float] = []
        for place, answer in enumerate(answers):
            start_s, end_s = draw.uniform(0, seconds / 3), draw.uniform(0.7, 1.0) * seconds
            pauses.append((end_s - start_s) / len(answer.records))
            due.append((loop.time() + start_s, place))
        heapq.heapify(due)
        acks: list[asyncio.Future[Any]] = []
        while due:
            if (wait_s := due[0][0] - loop.time()) > 0:
                await asyncio.sleep(max(wait_s, TICK_S))
            at_s, place = heapq.heappop(due)
            answer = answers[place]
            acks.append(await self._send(answer))
            if answer.num_sent < len(answer.records):
                heapq.heappush(due, (at_s + pauses[place], place))
            if len(acks) >= 1_000:
                acks = [ack for ack in acks if not ack.done() or ack.result() is None]
        for ack in acks:
            await ack

    async def _send(self, answer: Answer) -> "asyncio.Future[Any]":
        attempt, number = answer.records[answer.num_sent]
        answer.num_sent += 1
        key = answer.session_id.encode()
        ack: asyncio.Future[Any] = await self._producer.send(
            self._topic,
            answer.value(attempt, number),
            key=key,
            partition=partition_of(key, self._num_partitions),
        )

        def note(_done: object) -> None:
            answer.num_written += 1

        ack.add_done_callback(note)
        return ack
