"""One run, from start to judgement: servers, workers, load, faults. Every wait has a bound."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.streams.tasks import cancel_and_wait
from tests.chaos.book import Book, Problem
from tests.chaos.client import ANSWER_LIMIT_S, Client, Session
from tests.chaos.clock import Clock
from tests.chaos.faults import Faults
from tests.chaos.keeper import Keeper
from tests.chaos.oracle import Judge, one_thread
from tests.chaos.plan import Plan
from tests.chaos.reader import Reader
from tests.chaos.stack import MAX_MEMORY_MB, Stack, running_stack

log = logging.getLogger(__name__)

COMMIT_LIMIT_S = 30.0
WATCH_S = 0.5
MEMORY_SLACK = 1.1
START_LIMIT_S = 300.0


def limit_s(plan: Plan) -> float:
    """What ends a run that hangs."""
    return START_LIMIT_S + 3 * plan.length_s + 2 * ANSWER_LIMIT_S + 0.5 * plan.num_requests


@dataclass(frozen=True)
class Watcher:
    """Whoever looks on: `say` a line; `count(answered, struck)` what is done."""

    say: Callable[[str], None]
    count: Callable[[int, int], None]


class Run:
    """A plan carried out in `folder`, with everything written into `book`."""

    def __init__(self, plan: Plan, folder: Path, watcher: Watcher, *, workers: int) -> None:
        self.plan, self.book = plan, Book()
        self.durations: dict[str, float] = {}
        self.num_ties = 0
        self._folder, self._watcher, self._num_workers = folder, watcher, workers

    async def run(self) -> None:
        """A run that hangs is a problem in the book. Raises: what makes a server unusable."""
        try:
            async with asyncio.timeout(limit_s(self.plan)), running_stack(self._folder) as stack:
                await self._load(stack)
                with self._timed("judge"):
                    await asyncio.to_thread(self._judge, stack.model_dir)
        except* TimeoutError as problems:
            log.exception("a wait was over", exc_info=problems)
            self.book.note(Problem("hung", "a wait was over: harness.log says which"))

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.durations[name] = time.monotonic() - begun_s

    def _judge(self, model_dir: Path) -> None:
        self._watcher.say("judging")
        with one_thread():
            judge = Judge(model_dir, self.book)
            judge.judge()
        self.num_ties = judge.num_ties

    async def _load(self, stack: Stack) -> None:
        client = Client(stack.settings, self.book)
        reader = Reader(stack.settings, client, self.book)
        folder = self._folder / "workers"
        folder.mkdir()
        keeper = Keeper(stack.settings, folder, self.book, wanted=self._num_workers)
        await client.start()
        try:
            await reader.start()
            async with self._going_on(stack, keeper, reader) as keeping:
                with self._timed("start"):
                    await keeper.healthy(self._num_workers)
                await self._strike(stack, keeper, client)
                await self._settle(keeper, reader)
                await cancel_and_wait([keeping])
                with self._timed("drain"):
                    await keeper.stop()
                await reader.to_the_end()
        finally:
            keeper.kill_all()
            await reader.stop()
            await client.stop()

    @asynccontextmanager
    async def _going_on(
        self, stack: Stack, keeper: Keeper, reader: Reader
    ) -> AsyncIterator["asyncio.Task[None]"]:
        """What goes on beside the load; the failure of one is the run's."""
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(keeper.keep_for_ever())
            others = [
                tasks.create_task(reader.read_for_ever()),
                tasks.create_task(self._watch(stack)),
            ]
            try:
                yield keeping
            finally:
                await cancel_and_wait([keeping, *others])

    async def _watch(self, stack: Stack) -> None:
        while True:
            used = await stack.redis_bytes()
            self.book.redis_max_bytes = max(used, self.book.redis_max_bytes)
            self._watcher.count(self.book.num_finished, len(self.book.faults))
            await asyncio.sleep(WATCH_S)

    async def _strike(self, stack: Stack, keeper: Keeper, client: Client) -> None:
        """Load and faults, both by the clock of the plan."""
        clock = Clock()
        faults = Faults(stack, keeper, client, self.book, clock, self._watcher.say)
        with self._timed("load"):
            async with asyncio.TaskGroup() as tasks:
                for fault in self.plan.faults:
                    tasks.create_task(faults.strike(fault), name=fault.kind.value)
                for plan in self.plan.sessions:
                    session = Session(plan, client, self.book)
                    tasks.create_task(_at(clock, plan.at_s, session), name=plan.name)

    async def _settle(self, keeper: Keeper, reader: Reader) -> None:
        """Until all is answered and committed, or the waits for it are over."""
        with self._timed("settle"):
            await self._all_answered()
            await keeper.healthy(1)
            left = await reader.all_committed(timeout_s=COMMIT_LIMIT_S)
        for place, (committed, end) in left.items():
            text = f"committed {committed}, end {end}"
            self.book.note(Problem("uncommitted", text, place, self.book.started_s))
        if self.book.redis_max_bytes > MAX_MEMORY_MB * 2**20 * MEMORY_SLACK:
            text = f"Redis used {self.book.redis_max_bytes / 2**20:.0f} MB of {MAX_MEMORY_MB}"
            self.book.note(Problem("memory", text))

    async def _all_answered(self) -> None:
        """What is not, after ANSWER_LIMIT_S, is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_LIMIT_S):
                for asked in self.book.answerable:
                    await asked.finished.wait()


async def _at(clock: Clock, at_s: float, session: Session) -> None:
    await clock.until(at_s)
    await session.run()
