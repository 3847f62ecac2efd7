"""A producer of plain records for integration tests, and the end of its transactions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition

from headrace.consumers.kafka_reader import reading
from headrace.schemas.settings import Settings


@asynccontextmanager
async def producing(settings: Settings, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A started producer around a block."""
    producer = AIOKafkaProducer(**settings.kafka_options(), **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def ended_at(settings: Settings, topic: str, end: int) -> None:
    """Wait until partition 0 can be read up to `end`: the end of a transaction is acknowledged
    before its markers are written.
    """
    part = TopicPartition(topic, 0)
    async with reading(settings, max_partition_fetch_bytes=1000) as consumer, asyncio.timeout(10):
        while (await consumer.end_offsets([part]))[part] != end:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
