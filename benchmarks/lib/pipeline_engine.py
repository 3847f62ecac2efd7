"""The engine alone, for bench_pipeline: the same requests as the load client, without Kafka.

Obeys the same JSON lines and answers in the same form. Argument: JSON of a FakeWork, or null.
"""

import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.lib.exchange import Exchange, cpu_s, figures_of
from benchmarks.lib.fake_runner import FakeRunner, FakeWork
from benchmarks.lib.headrace_engine import GREEDY
from benchmarks.lib.pipeline_worker import FAKE_VOCAB_SIZE
from headrace.models.conversation import ConversationEncoder
from headrace.models.request import EngineOutput, EngineRequest
from headrace.schemas.settings import Settings, load_settings
from headrace.streams.served import build_engine, served_runner
from headrace.streams.worker import load_served_model


class EngineAlone:
    """An engine with a worker's settings, whose outputs go to one asyncio loop as a worker's do."""

    def __init__(self, settings: Settings, work: FakeWork | None) -> None:
        self._loop = asyncio.get_running_loop()
        loaded = load_served_model(settings)
        self._encoder = ConversationEncoder(loaded.tokenizer)
        fake = FakeRunner(work, vocab_size=FAKE_VOCAB_SIZE) if work else None
        runner = fake or served_runner(settings, loaded)
        self._engine = build_engine(settings, loaded, runner, on_outputs=self._on_outputs)
        self._engine.start()
        self._open: dict[str, Exchange] = {}
        self._num_sent = 0

    def _on_outputs(self, outputs: list[EngineOutput]) -> None:
        self._loop.call_soon_threadsafe(self._take, outputs)

    def _take(self, outputs: list[EngineOutput]) -> None:
        now_s = time.perf_counter()
        for output in outputs:
            exchange = self._open[output.key]
            if output.error is not None:
                exchange.finished.set_exception(output.error)
                continue
            exchange.arrived_s.append(now_s)
            exchange.num_tokens += len(output.token_ids)
            if output.is_last:
                del self._open[output.key]
                exchange.finished.set_result(None)

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        prompts = iter([self._encoder.encode_prompt(text) for text in order["prompts"]])
        done: list[Exchange] = []
        cpu_before_s, started_s = cpu_s(), time.perf_counter()

        async def session() -> None:
            for turn in range(order["turns"]):
                exchange = self._ask(next(prompts), order["new_tokens"])
                if turn == 0:
                    self._engine.expect(-1)
                await exchange.finished
                done.append(exchange)

        self._engine.expect(order["sessions"])
        async with asyncio.TaskGroup() as tasks:
            for _ in range(order["sessions"]):
                tasks.create_task(session())
        wall_s = time.perf_counter() - started_s
        return figures_of(done, wall_s, cpu_s() - cpu_before_s)

    def _ask(self, prompt_ids: list[int], new_tokens: int) -> Exchange:
        self._num_sent += 1
        key = str(self._num_sent)
        exchange = Exchange(time.perf_counter(), self._loop.create_future())
        self._open[key] = exchange
        self._engine.add(EngineRequest(key, prompt_ids, new_tokens, sampling=GREEDY))
        return exchange

    def stop(self) -> None:
        self._engine.stop()


async def main(work: FakeWork | None) -> None:
    engine = EngineAlone(load_settings(), work)
    print("{}", flush=True)  # ready
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await engine.run(json.loads(line))), flush=True)
    engine.stop()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(main(FakeWork(**given) if given else None))
