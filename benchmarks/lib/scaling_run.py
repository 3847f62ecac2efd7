"""The autoscaler of `headrace up` on real workers, and what it did: lag, workers, lines, pauses.

Owns the fleet for one part of a measurement. What is asked, and when, is the benchmark's.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.lib.answering import Answering
from headrace.consumers.lag_service import LagService
from headrace.deploy.autoscale.fleet import Fleet
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.autoscale.scaler import Scaler
from headrace.deploy.local_services import changed
from headrace.deploy.programs import worker_program
from tests.pipeline import Reply

SAMPLE_S = 0.25
ANSWERS_TIMEOUT_S = 600.0
QUIET_TIMEOUT_S = 120.0
NUM_PROMPTS = 10
"""Many requests share a prompt, so that answers which moved can be compared with some that did
not: greedy decoding gives one text for a prompt.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was so at a time. Units: seconds from the start of the part."""

    at_s: float
    records: int | None
    ready: int
    starting: int
    draining: int


@dataclass
class Part:
    """One part of the measurement."""

    title: str
    samples: list[Sample] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    speed_tok_s: float = 0.0
    """Of one worker, as the scaler had it at last."""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def changes_s(self) -> list[float]:
        """When workers came or were asked to go."""
        return [b.at_s for a, b in pairwise(self.samples) if a.ready != b.ready]

    def say(self, text: str) -> None:
        """A line of the scaler."""
        self.events.append((round(self.age_s, 1), text))


class ScalingRun:
    """A fleet that is scaled by the lag of `run`'s pipeline, and samples of both."""

    def __init__(self, run: Answering, folder: Path, policy: Policy, part: Part) -> None:
        settings = changed(run.pipeline.settings, threads=1)
        self.part, self._run = part, run
        self._fleet = Fleet(
            lambda number: worker_program(settings, folder, number, policy.max_workers),
            stop_timeout_s=settings.drain_timeout_s,
            on_note=part.say,
        )
        self._scaler = Scaler(policy, self._fleet, LagService(settings), settings)

    async def ask(self, count: int, max_tokens: int) -> None:
        """Requests in sessions of their own, one after the other."""
        for _ in range(count):
            number = len(self.part.names)
            name = f"{self.part.title}-{number}".replace(" ", "-")
            body = {
                "request_id": name,
                "messages": [{"role": "user", "content": f"mills, part {number % NUM_PROMPTS}"}],
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
            self.part.names.append(await self._run.pipeline.ask(body, key=name))

    @property
    def num_unfinished(self) -> int:
        """Of those that were asked."""
        return sum(not self._run.reply(name).reader.finished for name in self.part.names)

    async def answered(self) -> None:
        """Wait for the end of all answers."""
        await self._run.pipeline.finished(self.part.names, timeout_s=ANSWERS_TIMEOUT_S)

    async def no_worker_left(self) -> None:
        """Wait until the last one is gone."""
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while self._fleet.members:  # noqa: ASYNC110 - processes end
                await asyncio.sleep(SAMPLE_S)

    def work(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Begin to scale and to watch."""
        return [
            tasks.create_task(self._scaler.run(tasks, self.part.say)),
            tasks.create_task(self._watch()),
        ]

    def drain_all(self) -> None:
        """End those that are left."""
        for member in self._fleet.members:
            self._fleet.drain(member)

    async def _watch(self) -> None:
        while True:
            workers, lag = self._fleet.workers, self._scaler.latest
            self.part.speed_tok_s = self._scaler.speed_tok_s
            self.part.samples.append(
                Sample(
                    round(self.part.age_s, 2),
                    None if lag is None else lag.records,
                    workers.ready,
                    len(workers.starting_since_s),
                    workers.draining,
                )
            )
            await asyncio.sleep(SAMPLE_S)


@asynccontextmanager
async def scaling(
    run: Answering, folder: Path, policy: Policy, title: str
) -> AsyncIterator[ScalingRun]:
    """A part of the measurement, until the end of the block; no worker is left then."""
    one = ScalingRun(run, folder, policy, Part(title))
    async with asyncio.TaskGroup() as tasks:
        working = one.work(tasks)
        try:
            yield one
        finally:
            for task in working:
                task.cancel()
            one.drain_all()


def check_answers(names: Iterable[str], reply_of: Callable[[str], Reply], tokens: int) -> None:
    """Each complete, once, with the text that all answers to its prompt have.

    An event that repeats with other content, or a gap, has ended the run already.
    Raises: AssertionError.
    """
    texts: defaultdict[int, set[str]] = defaultdict(set)
    for number, name in enumerate(names):
        reply = reply_of(name)
        assert not reply.failed, f"{name} failed: {reply.last}"
        assert reply.finish_reason == "length", f"{name} ended by {reply.finish_reason}"
        assert reply.last["usage"]["completion_tokens"] == tokens, f"{name} is not complete"
        assert len({event["attempt"] for event in reply.events}) == 1, f"{name} began again"
        texts[number % NUM_PROMPTS].add(reply.text)
    for number, found in texts.items():
        assert len(found) == 1, f"prompt {number} has {len(found)} answers"
