"""One record on its way to Kafka, as bytes, and the end of a producer."""

import asyncio
from dataclasses import dataclass

import structlog
from aiokafka import AIOKafkaProducer

from headrace.schemas.headers import Headers

STOP_TIMEOUT_S = 5.0

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


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Send what is buffered, for STOP_TIMEOUT_S at the most, and disconnect."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await producer.stop()
    except TimeoutError:
        _log.warning("producer.stop_timed_out", timeout_s=STOP_TIMEOUT_S)
        await producer.client.close()
