"""Keeps as many workers running as are wanted: one that ends is replaced, and its code judged."""

import asyncio
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from headrace.models.cache import dying_with_us
from headrace.schemas.settings import Settings
from tests.chaos.book import Book, Problem
from tests.pipeline import WorkerProcess

POLL_S = 0.1
HEALTHY_LIMIT_S = 120.0
DRAIN_LIMIT_S = 25.0
"""The product's own bound (20 s), and what starting to look takes on a loaded machine."""

STEP_S = 0.01
"""Pause in each step: a stream has 100 tokens a second at the most."""

KV_POOL_MB, MAX_BATCH_SIZE = 128, 16


class PacedWorker(WorkerProcess):
    """A `headrace worker` whose steps take their time; ended with this process."""

    def command(self) -> list[str]:
        return dying_with_us([sys.executable, "-m", "tests.chaos.worker", str(STEP_S)])


@dataclass(eq=False, slots=True)
class Kept:
    """One worker. `may_end_with`: the exit codes that are no problem."""

    process: WorkerProcess
    may_end_with: set[int] = field(default_factory=set)
    joined: bool = False
    paused: bool = False
    leaving: bool = False

    @property
    def pid(self) -> int:
        return self.process.process.pid

    @property
    def healthy(self) -> bool:
        """In the group, and nothing was done to it yet."""
        return self.joined and not (self.paused or self.leaving)


class Keeper:
    """The workers of a run. Faults take them away through this."""

    def __init__(self, settings: Settings, folder: Path, book: Book, *, wanted: int) -> None:
        self._settings, self._folder, self._book = settings, folder, book
        self.wanted = wanted
        self.kept: list[Kept] = []
        self.deadly_under_way = 0
        self.num_deaths = 0
        """Workers that a deadly request ended."""
        self.num_started = 0

    async def keep_for_ever(self) -> None:
        """Cancel: no more workers are started."""
        async with asyncio.TaskGroup() as joining:
            while True:
                self._collect()
                staying = [one for one in self.kept if not one.leaving]
                for _ in range(self.wanted - len(staying)):
                    kept = self._start()
                    joining.create_task(self._join(kept))
                await asyncio.sleep(POLL_S)

    def _start(self) -> Kept:
        self.num_started += 1
        worker = PacedWorker(
            self._settings,
            self._folder,
            kv_pool_mb=KV_POOL_MB,
            max_batch_size=MAX_BATCH_SIZE,
        )
        kept = Kept(worker)
        self.kept.append(kept)
        return kept

    async def _join(self, kept: Kept) -> None:
        try:
            await kept.process.ready()
        except (RuntimeError, TimeoutError):
            return  # it has ended, which `_collect` judges, or Redis or Kafka is away for long
        kept.joined = True

    def _collect(self) -> None:
        for kept in list(self.kept):
            code = kept.process.process.poll()
            if code is None:
                continue
            self.kept.remove(kept)
            if code == -signal.SIGSEGV and self.deadly_under_way:
                self.num_deaths += 1
            elif code not in kept.may_end_with and not self._could_not_start(kept, code):
                text = f"worker {kept.pid} ended by itself with exit code {code}"
                problem = Problem("worker ended", text, str(kept.process.log))
                self._book.note(problem)

    def _could_not_start(self, kept: Kept, code: int) -> bool:
        """Whether Redis or Kafka was away, so that a worker that began then must give up."""
        return code == 1 and not kept.joined and bool(self._book.services_away())

    def _healthy(self) -> list[Kept]:
        return [one for one in self.kept if one.healthy]

    async def healthy(self, at_least: int) -> list[Kept]:
        """Wait until so many are; the healthy ones. Raises: TimeoutError."""
        async with asyncio.timeout(HEALTHY_LIMIT_S):
            while len(found := self._healthy()) < at_least:  # noqa: ASYNC110 - of processes
                await asyncio.sleep(POLL_S)
        return found

    def kill(self, kept: Kept) -> None:
        """SIGKILL."""
        kept.may_end_with.add(-signal.SIGKILL)
        kept.joined = False
        kept.process.process.send_signal(signal.SIGKILL)

    async def drain(self, kept: Kept) -> str | None:
        """SIGTERM; what is wrong with how it ended, or None."""
        kept.leaving = True
        kept.may_end_with.add(0)
        process = kept.process.process
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(DRAIN_LIMIT_S):
                while process.poll() is None:  # noqa: ASYNC110 - of a process
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            kept.may_end_with.add(-signal.SIGKILL)
            process.kill()
            return f"worker {kept.pid} did not end within {DRAIN_LIMIT_S:g} s of SIGTERM"
        return None

    async def pause(self, kept: Kept, pause_s: float) -> None:
        """SIGSTOP, and SIGCONT `pause_s` later, also when cancelled."""
        kept.paused = True
        kept.process.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(pause_s)
        finally:
            kept.process.process.send_signal(signal.SIGCONT)
            kept.paused = False

    async def stop(self) -> None:
        """Drain all; call it when `keep_for_ever` has ended."""
        async with asyncio.TaskGroup() as draining:
            done = [draining.create_task(self.drain(kept)) for kept in self.kept]
        for task in done:
            if (text := task.result()) is not None:
                self._book.note(Problem("worker ended", text))
        self._collect()

    def kill_all(self) -> None:
        """At the end of a run that failed."""
        for kept in self.kept:
            if kept.process.process.poll() is None:
                kept.process.kill()
