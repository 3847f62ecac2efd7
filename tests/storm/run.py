"""The storm: rounds in which all clients drop at once and resume, some with a gateway killed."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings
from tests.storm.answers import AnswerWriter, make_answer
from tests.storm.client import Client, Times
from tests.storm.gateways import GatewayProcess

NUM_PARTITIONS = 12
KILL_EVERY = 3
"""One round in so many has a gateway killed at the moment when all drop."""

RESTART_EVERY = 5
"""One round in so many has the broker killed then, and started again at once."""

FINISH_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Plan:
    """What a storm is made of; `round_s`: how long the answers of a round take."""

    seed: int = 1
    num_clients: int = 1_000
    num_rounds: int = 20
    num_words: int = 24
    round_s: float = 10.0
    num_gateways: int = 2


@dataclass
class Outcome:
    """What became of it."""

    num_complete: int = 0
    problems: list[str] = field(default_factory=list)
    times: list[list[Times]] = field(default_factory=list)
    """By round."""
    kills: list[bool] = field(default_factory=list)
    memory_mb: list[list[float]] = field(default_factory=list)
    num_retries: int = 0


class Storm:
    """`run` it once, with a Kafka that runs. `on_round` is told of each round's end;
    `restart_kafka` kills the broker and starts it again, where that is part of the storm.
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        folder: Path,
        on_round: Callable[[str], None],
        *,
        restart_kafka: Callable[[], None] | None = None,
    ) -> None:
        self._plan, self._settings, self._on_round = plan, settings, on_round
        self._restart_kafka = restart_kafka
        self._draw = random.Random(plan.seed)
        self._gateways = [
            GatewayProcess(settings, folder, number) for number in range(plan.num_gateways)
        ]
        self._clients = [
            Client(number, random.Random(f"{plan.seed}/{number}"))
            for number in range(plan.num_clients)
        ]
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """All rounds; gateways are ended on every path."""
        await ensure_topics(self._settings, partitions=NUM_PARTITIONS)
        try:
            async with asyncio.TaskGroup() as tasks:
                for gateway in self._gateways:
                    tasks.create_task(gateway.start())
            async with AnswerWriter(self._settings, NUM_PARTITIONS) as writer:
                for number in range(self._plan.num_rounds):
                    await self._round(number, writer)
        finally:
            for gateway in self._gateways:
                gateway.kill()
        return self.outcome

    async def _round(self, number: int, writer: AnswerWriter) -> None:
        plan, draw = self._plan, self._draw
        answers = [make_answer(draw, client.number, plan.num_words) for client in self._clients]
        for client, answer in zip(self._clients, answers, strict=True):
            client.begin(answer)
            client.gateway = draw.randrange(plan.num_gateways)
        killed = draw.randrange(plan.num_gateways) if number % KILL_EVERY == 1 else None
        storm_s = draw.uniform(0.35, 0.65) * plan.round_s
        async with asyncio.TaskGroup() as tasks:
            visits = self._begin_all(tasks)
            tasks.create_task(writer.write(answers, draw, seconds=plan.round_s))
            await asyncio.sleep(storm_s)
            restarts = self._strike(tasks, number, killed)
            visits = await self._drop_all(tasks, visits)
            _done, late = await asyncio.wait(visits, timeout=plan.round_s + FINISH_TIMEOUT_S)
            for task in late:
                task.cancel()
            for restart in restarts:
                await restart
        self._note(number, killed is not None)

    def _begin_all(self, tasks: asyncio.TaskGroup) -> "list[asyncio.Task[None]]":
        addresses = [gateway.address for gateway in self._gateways]
        return [tasks.create_task(client.follow(addresses)) for client in self._clients]

    def _strike(
        self, tasks: asyncio.TaskGroup, number: int, killed: int | None
    ) -> "list[asyncio.Task[None]]":
        """Kill a gateway, or the broker, and start it again at once."""
        restarts = []
        if killed is not None:
            self._gateways[killed].kill()
            restarts.append(tasks.create_task(self._gateways[killed].start()))
        if self._restart_kafka is not None and number % RESTART_EVERY == RESTART_EVERY - 1:
            restarts.append(tasks.create_task(asyncio.to_thread(self._restart_kafka)))
        return restarts

    async def _drop_all(
        self, tasks: asyncio.TaskGroup, visits: "list[asyncio.Task[None]]"
    ) -> "list[asyncio.Task[None]]":
        for task in visits:
            task.cancel()
        await asyncio.wait(visits)
        for client in self._clients:
            client.drop()
            client.gateway = self._draw.randrange(self._plan.num_gateways)
        return self._begin_all(tasks)

    def _note(self, number: int, killed: bool) -> None:
        outcome, clients = self.outcome, self._clients
        for client in clients:
            complete = client.done.is_set() and client.text == client.answer.text
            outcome.num_complete += complete
            if not complete:
                place, newest = client.place, client.answer.newest
                client.problems.append(
                    f"client {client.number}, {client.answer.request_id}: not complete, {place=}"
                    f" {newest=}"
                )
            outcome.problems += client.problems
            client.problems.clear()
        times = [it for client in clients for it in client.times]
        outcome.times.append(times)
        outcome.kills.append(killed)
        outcome.memory_mb.append([gateway.memory_mb() for gateway in self._gateways])
        outcome.num_retries += sum(client.retries for client in clients)
        for client in clients:
            client.times, client.retries = [], 0
        self._on_round(round_line(number, outcome))


def percentile(values: list[float], share: float) -> float:
    """Of a list that may be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def round_line(number: int, outcome: Outcome) -> str:
    """The last round in one line."""
    times = outcome.times[-1]
    live = [it.live_s for it in times]
    caught = [it.caught_up_s for it in times]
    memory = " ".join(f"{it:.0f}" for it in outcome.memory_mb[-1])
    return (
        f"round {number}{' (killed)' if outcome.kills[-1] else ''}: live again"
        f" p50 {percentile(live, 0.5):.2f} p99 {percentile(live, 0.99):.2f}"
        f" max {max(live, default=0):.2f} s, caught up p50 {percentile(caught, 0.5):.2f}"
        f" p99 {percentile(caught, 0.99):.2f} s, {len(times)} drops, gateways {memory} MB,"
        f" {len(outcome.problems)} problems"
    )
