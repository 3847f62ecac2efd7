"""The faults: each strikes, lasts, and ends; the book has its times."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from headrace.streams.liveness import STALL_LIMIT_S
from tests.chaos.book import AskedKind, Book, FaultRun, Problem
from tests.chaos.client import Client, answered
from tests.chaos.clock import Clock
from tests.chaos.keeper import Keeper, Kept
from tests.chaos.plan import FaultKind, FaultPlan
from tests.chaos.stack import Stack, send_signal
from tests.chaos.worker import DEADLY_TEXT

ZOMBIE_S, LONG_ZOMBIE_S = 9.0, 60.0
"""Above the session timeout of 6 s; and far above."""

KAFKA_PAUSE_S = 8.0
MIN_WORKERS = 2
ANSWERING_CHANCE = 0.7
"""That a fault of a worker strikes the one that published last."""

FULL_BYTES = 1_000_000


class Faults:
    """Strikes the parts of a run. `say(text)`: one line for whoever watches."""

    def __init__(
        self,
        stack: Stack,
        keeper: Keeper,
        client: Client,
        book: Book,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._stack, self._keeper, self._client, self._book = stack, keeper, client, book
        self._clock, self._say = clock, say
        self._workers_lock = asyncio.Lock()
        self._kinds: dict[FaultKind, Callable[[FaultPlan], Awaitable[None]]] = {
            FaultKind.WORKER_KILLED: self._kill_worker,
            FaultKind.TWO_WORKERS_KILLED: self._kill_two,
            FaultKind.WORKER_DRAINED: self._drain_worker,
            FaultKind.WORKER_PAUSED: lambda plan: self._pause_worker(plan, 2.0),
            FaultKind.WORKER_ZOMBIE: lambda plan: self._pause_worker(plan, ZOMBIE_S),
            FaultKind.WORKER_ZOMBIE_LONG: lambda plan: self._pause_worker(plan, LONG_ZOMBIE_S),
            FaultKind.WORKER_JOINS: self._join,
            FaultKind.WORKER_LEAVES: self._leave,
            FaultKind.REDIS_RESTARTED: self._restart_redis,
            FaultKind.REDIS_FLUSHED: self._flush_redis,
            FaultKind.REDIS_PAUSED: self._pause_redis,
            FaultKind.REDIS_SLOW: self._slow_redis,
            FaultKind.REDIS_SILENT: self._silence_redis,
            FaultKind.REDIS_CUT: self._cut_redis,
            FaultKind.REDIS_FULL: self._fill_redis,
            FaultKind.KAFKA_RESTARTED: self._restart_kafka,
            FaultKind.KAFKA_KILLED: self._kill_kafka,
            FaultKind.KAFKA_PAUSED: self._pause_kafka,
            FaultKind.DEADLY_REQUEST: self._ask_deadly,
        }

    async def strike(self, plan: FaultPlan) -> None:
        """Once what it needs is there, until it has ended; the plan waits for the strike."""
        await self._clock.until(plan.at_s)
        with self._clock.held_for(plan):
            await self._kinds[plan.kind](plan)

    @asynccontextmanager
    async def _noted(self, plan: FaultPlan, note: str = "") -> AsyncIterator[FaultRun]:
        self._clock.go_on(plan)
        run = FaultRun(plan.number, plan.kind, time.monotonic(), note=note)
        self._book.faults.append(run)
        self._say(f"fault {plan.number + 1}: {plan.kind.value} {note}".rstrip())
        try:
            yield run
        finally:
            run.ended_s = time.monotonic()

    # workers

    async def _victims(self, plan: FaultPlan, count: int = 1) -> list[Kept]:
        """So many, once two are healthy; most often beginning with one that is answering."""
        found = await self._keeper.healthy(MIN_WORKERS)
        if plan.pick < ANSWERING_CHANCE:
            found.sort(key=lambda kept: kept.pid != self._book.last_publisher)
            return found[:count]
        first = int(plan.span * len(found))
        return [found[(first + n) % len(found)] for n in range(count)]

    async def _kill_worker(self, plan: FaultPlan) -> None:
        async with self._workers_lock:
            (victim,) = await self._victims(plan)
            async with self._noted(plan, f"(pid {victim.pid})"):
                self._keeper.kill(victim)

    async def _kill_two(self, plan: FaultPlan) -> None:
        async with self._workers_lock:
            victims = await self._victims(plan, 2)
            async with self._noted(plan, f"(pids {', '.join(str(v.pid) for v in victims)})"):
                for victim in victims:
                    self._keeper.kill(victim)

    async def _drain_worker(self, plan: FaultPlan) -> None:
        async with self._workers_lock:
            (victim,) = await self._victims(plan)
            async with self._noted(plan, f"(pid {victim.pid})"):
                await self._drain(victim)

    async def _drain(self, victim: Kept) -> None:
        problem = await self._keeper.drain(victim)
        if problem is not None:
            self._book.note(Problem("worker ended", problem, str(victim.process.log)))

    async def _pause_worker(self, plan: FaultPlan, pause_s: float) -> None:
        async with self._workers_lock:
            (victim,) = await self._victims(plan)
            victim.paused = True
            if pause_s >= STALL_LIMIT_S:  # then a worker that wakes up ends, and is replaced
                victim.may_end_with.add(-signal.SIGALRM)
        async with self._noted(plan, f"(pid {victim.pid})"):
            await self._keeper.pause(victim, pause_s)

    async def _join(self, plan: FaultPlan) -> None:
        async with self._noted(plan):
            self._keeper.wanted += 1
            await self._keeper.healthy(MIN_WORKERS)

    async def _leave(self, plan: FaultPlan) -> None:
        async with self._workers_lock:
            (victim,) = await self._victims(plan)
            async with self._noted(plan, f"(pid {victim.pid})"):
                self._keeper.wanted = max(MIN_WORKERS, self._keeper.wanted - 1)
                await self._drain(victim)

    async def _ask_deadly(self, plan: FaultPlan) -> None:
        async with self._noted(plan):
            self._keeper.deadly_under_way += 1
            name = f"deadly{plan.number}"
            messages = [{"role": "user", "content": DEADLY_TEXT * 8}]
            body = {"request_id": name, "messages": messages, "max_tokens": 8}
            asked = await self._client.ask(name, body, AskedKind.DEADLY)
            await answered(asked)
            await asyncio.sleep(1.0)  # a death of it may not be collected yet
            self._keeper.deadly_under_way -= 1

    # Redis

    async def _restart_redis(self, plan: FaultPlan) -> None:
        valkey = self._stack.valkey
        async with self._stack.redis_lock, self._noted(plan):
            await asyncio.to_thread(valkey.kill)
            await asyncio.sleep(3.0 * plan.span)
            await asyncio.to_thread(valkey.start)

    async def _flush_redis(self, plan: FaultPlan) -> None:
        async with self._stack.redis_lock, self._noted(plan):
            await self._stack.admin(lambda client: client.flushall())

    async def _pause_redis(self, plan: FaultPlan) -> None:
        async with self._stack.redis_lock, self._noted(plan):
            send_signal(self._stack.valkey.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(1.0 + 4.0 * plan.span)
            finally:
                send_signal(self._stack.valkey.pid, signal.SIGCONT)

    async def _slow_redis(self, plan: FaultPlan) -> None:
        """From 150 to 700 ms for the way there and back."""
        latency_s = 0.075 + 0.275 * plan.span
        proxy = self._stack.proxy
        async with self._stack.redis_lock, self._noted(plan, f"({2000 * latency_s:.0f} ms)"):
            proxy.latency_s = latency_s
            await asyncio.sleep(7.0)
            proxy.latency_s = 0.0

    async def _silence_redis(self, plan: FaultPlan) -> None:
        async with self._stack.redis_lock, self._noted(plan):
            self._stack.proxy.silence()
            await asyncio.sleep(1.0 + 4.0 * plan.span)
            self._stack.proxy.flow()

    async def _cut_redis(self, plan: FaultPlan) -> None:
        async with self._stack.redis_lock, self._noted(plan):
            self._stack.proxy.refuse()
            await asyncio.sleep(2.0 * plan.span)
            self._stack.proxy.flow()

    async def _fill_redis(self, plan: FaultPlan) -> None:
        async with self._stack.redis_lock, self._noted(plan):
            await self._stack.limit_redis(max_bytes=FULL_BYTES, policy="noeviction")
            await asyncio.sleep(2.0 + 4.0 * plan.span)
            await self._stack.unlimit_redis()

    # Kafka

    async def _restart_kafka(self, plan: FaultPlan) -> None:
        kafka = self._stack.kafka
        async with self._stack.kafka_lock, self._noted(plan):
            await asyncio.to_thread(kafka.stop)
            await asyncio.sleep(4.0 * plan.span)
            await asyncio.to_thread(kafka.start)

    async def _kill_kafka(self, plan: FaultPlan) -> None:
        kafka = self._stack.kafka
        async with self._stack.kafka_lock, self._noted(plan):
            await asyncio.to_thread(kafka.kill)
            await asyncio.sleep(4.0 * plan.span)
            await asyncio.to_thread(kafka.start)

    async def _pause_kafka(self, plan: FaultPlan) -> None:
        async with self._stack.kafka_lock, self._noted(plan):
            send_signal(self._stack.kafka.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(KAFKA_PAUSE_S)
            finally:
                send_signal(self._stack.kafka.pid, signal.SIGCONT)
