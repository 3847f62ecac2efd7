"""One record on its way to Kafka, as bytes; and of any producer, its topics and its end."""

import asyncio
from dataclasses import dataclass

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from headrace.schemas.errors import UnavailableError
from headrace.schemas.headers import Headers
from headrace.schemas.settings import Settings

STOP_TIMEOUT_S = 5.0

TOPIC_TIMEOUT_S = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to be written; a partition of None is chosen by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """What its content takes, without framing."""
        texts = (self.key, self.value, *(value for _, value in self.headers))
        names = sum(len(name) for name, _ in self.headers)
        return names + sum(len(text or b"") for text in texts)


class TopicMissingError(UnavailableError):
    """The topic is not there (or the broker went away before it was looked up)."""

    def __str__(self) -> str:
        return (
            f"{self.what} was not found within {self.timeout_s:g} s: "
            "create the topics with `headrace topics create`"
        )


async def partitions_of(producer: AIOKafkaProducer, topic: str, settings: Settings) -> set[int]:
    """The numbers of the topic's partitions. Raises: TopicMissingError."""
    try:
        async with asyncio.timeout(TOPIC_TIMEOUT_S):
            return set(await producer.partitions_for(topic))
    except (TimeoutError, KafkaError) as problem:
        what = f"topic {topic} at {settings.kafka}"
        raise TopicMissingError(what, TOPIC_TIMEOUT_S) from problem


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Send what is buffered, for STOP_TIMEOUT_S at the most, and disconnect."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await producer.stop()
    except TimeoutError:
        _log.warning("producer.stop_timed_out", timeout_s=STOP_TIMEOUT_S)
        await producer.client.close()
