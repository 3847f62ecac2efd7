"""What bench_gateway's readers read, written at an even pace by a process of its own.

To Kafka, as workers would; `gateway_peer` has the same events without Kafka.
"""

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from headrace.schemas.topics import partition_of

TICK_S = 0.005
LINGER_MS = 5
HOT = "hot"
"""The session that all wedged sockets follow."""

TEXT = "mill wheel turning "
_WORDS = "The wheel turns as long as the water comes down the race, and not a moment longer. "


def event_of(session: str, sequence_number: int, number: int, text: str) -> bytes:
    """An event as workers write it; `n`, which readers ignore, stands at its end."""
    return (
        b'{"id":"r-%b","object":"chat.completion.chunk","created":1796000000,"model":"bench",'
        b'"system_fingerprint":"fp-bench","session_id":"%b","attempt":1,"sequence_number":%d,'
        b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}],"n":%d}'
        % (session.encode(), session.encode(), sequence_number, text.encode(), number)
    )


async def at_pace(per_s: float, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Call `act` `per_s` times a second, in ticks of 5 ms; late ticks catch up."""
    loop = asyncio.get_running_loop()
    began_s, done = loop.time(), 0
    while (passed_s := loop.time() - began_s) < seconds:
        while done < passed_s * per_s:
            await act()
            done += 1
        await asyncio.sleep(TICK_S)


class Source:
    """Writes events to the responses topic and remembers when the broker appended each."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int) -> None:
        self._producer, self._topic, self._partitions = producer, topic, partitions
        self._next_numbers: Counter[str] = Counter()
        self._places: list[asyncio.Future[Any]] = []

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """`per_s` events to `sessions` sessions in turn, and `hot_per_s` large ones to the hot one.

        The answer has the broker's time of each, by its number.
        """
        self._places = []
        turn = itertools.cycle(f"s{index}" for index in range(order["sessions"]))
        large = _WORDS * (order["hot_bytes"] // len(_WORDS))
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for per_s, act in (
                (order["per_s"], lambda: self._send(next(turn), TEXT)),
                (order["hot_per_s"], lambda: self._send(HOT, large)),
            ):
                tasks.create_task(at_pace(per_s, order["seconds"], act))
        wall_s = time.monotonic() - began_s
        await self._producer.flush()
        return {"wall_s": wall_s, "append_ms": [(await one).timestamp for one in self._places]}

    async def _send(self, session: str, text: str) -> None:
        sequence_number, number = self._next_numbers[session], len(self._places)
        self._next_numbers[session] += 1
        key = session.encode()
        self._places.append(asyncio.get_running_loop().create_future())  # the number is taken
        self._places[number] = await self._producer.send(
            self._topic,
            event_of(session, sequence_number, number, text),
            key=key,
            partition=partition_of(key, self._partitions),
        )


async def main(bootstrap: str, topic: str, partitions: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=LINGER_MS)
    await producer.start()
    try:
        source = Source(producer, topic, int(partitions))
        print("{}", flush=True)  # ready
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(orjson.dumps(await source.run(orjson.loads(line))).decode(), flush=True)
    finally:
        await producer.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
