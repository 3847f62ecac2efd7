"""What aiokafka's consumer gets wrong at its end."""

import asyncio
from typing import Any, cast

from headrace.consumers.kafka_reader import close_consumer


class HalfStoppedConsumer:
    """Its `stop` ends in the middle, as if the caller had been cancelled."""

    def __init__(self) -> None:
        self.num_closed = 0
        self._client = self

    async def stop(self) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.num_closed += 1


async def test_a_consumer_whose_stop_ends_half_way_is_closed_and_nobody_is_cancelled() -> None:
    """Its broker is away: the watch of the lag ended there, without a word, for ever."""
    consumer = HalfStoppedConsumer()
    await close_consumer(consumer)
    assert consumer.num_closed == 1


async def test_who_is_really_cancelled_meanwhile_stays_cancelled() -> None:
    """The client is closed before."""
    consumer = HalfStoppedConsumer()
    closing = asyncio.create_task(close_consumer(cast(Any, consumer)))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert (closing.cancelled(), consumer.num_closed) == (True, 1)
