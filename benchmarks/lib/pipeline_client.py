"""The load client of bench_pipeline, a process of its own: plain aiokafka, nothing of Headrace.

It obeys one JSON line on stdin at a time, `{"sessions": 8, "turns": 3, "prompts": [...], ...}`, and
answers with one JSON line of `exchange.figures_of`. Each session sends its next request when the
last event of the one before is read.
"""

import asyncio
import sys
import time
from typing import Any
from uuid import uuid4

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.lib.exchange import Exchange, cpu_s, figures_of

TIMEOUT_S = 300.0


class Client:
    """Produces requests and reads events until each request has its last one."""

    def __init__(self, bootstrap: str, requests: str, responses: str) -> None:
        self._requests, self._responses = requests, responses
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=0)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="latest")
        self._open: dict[str, Exchange] = {}

    async def start(self) -> None:
        await self._producer.start()
        await self._consumer.start()
        partitions = await self._producer.partitions_for(self._responses)
        places = [TopicPartition(self._responses, number) for number in partitions]
        self._consumer.assign(places)
        for place in places:
            await self._consumer.position(place)  # at the end, before anything is produced

    async def stop(self) -> None:
        await self._producer.stop()
        await self._consumer.stop()

    async def read_for_ever(self) -> None:
        while True:
            found = await self._consumer.getmany(timeout_ms=1000)
            now_s = time.perf_counter()
            for records in found.values():
                for record in records:
                    self._see(orjson.loads(record.value), now_s)

    def _see(self, event: dict[str, Any], now_s: float) -> None:
        exchange = self._open.get(event["id"])
        if exchange is None:
            return
        if event["object"] == "error":
            raise RuntimeError(f"a request failed: {event['error']}")
        if len(exchange.arrived_s) != event["sequence_number"]:
            raise RuntimeError(f"{event['id']}: {event['sequence_number']} is out of order")
        exchange.arrived_s.append(now_s)
        if event["choices"][0]["finish_reason"] is not None:
            exchange.num_tokens = event["usage"]["completion_tokens"]
            del self._open[event["id"]]
            exchange.finished.set_result(None)

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        prompts = iter(order["prompts"])
        done: list[Exchange] = []
        cpu_before_s, started_s = cpu_s(), time.perf_counter()

        async def session() -> None:
            key = uuid4().hex
            for _ in range(order["turns"]):
                exchange = await self._ask(key, next(prompts), order["new_tokens"])
                await exchange.finished
                done.append(exchange)

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            for _ in range(order["sessions"]):
                tasks.create_task(session())
        wall_s = time.perf_counter() - started_s
        return figures_of(done, wall_s, cpu_s() - cpu_before_s)

    async def _ask(self, key: str, prompt: str, new_tokens: int) -> Exchange:
        request_id = uuid4().hex
        body = {
            "request_id": request_id,
            "prompt": prompt,
            "context": "replace",
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        exchange = Exchange(time.perf_counter(), asyncio.get_running_loop().create_future())
        self._open[request_id] = exchange
        await self._producer.send(self._requests, orjson.dumps(body), key=key.encode())
        return exchange


async def main(bootstrap: str, requests: str, responses: str) -> None:
    client = Client(bootstrap, requests, responses)
    await client.start()

    async def obey() -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer = await client.run(orjson.loads(line))
            print(orjson.dumps(answer).decode(), flush=True)
        reading.cancel()

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(client.read_for_ever())
        print("{}", flush=True)  # ready
        tasks.create_task(obey())
    await client.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
