"""The loop that reads the lag and the workers' counters, asks the decision, and carries it out.

Owns no rule and no process: `decision` and `fleet` do.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from headrace.consumers.lag import Lag
from headrace.deploy.autoscale.decision import Autoscaler, Backlog, Reading, Verdict
from headrace.deploy.autoscale.fleet import Fleet, Member
from headrace.deploy.autoscale.metrics import AutoscalerMetrics
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.autoscale.scrape import read_counters
from headrace.deploy.autoscale.speed import Counters, SpeedMeter
from headrace.deploy.autoscale.work_left import WorkLeft
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings


class LagSource(Protocol):
    """`consumers.lag_service.LagService`, or what a test has in its place."""

    async def stop(self) -> None:
        """Close what it has open."""

    async def read(self) -> Lag:
        """The lag now. Raises: UnavailableError."""


class Scaler:
    """Keeps a fleet as large as the lag asks for."""

    def __init__(self, policy: Policy, fleet: Fleet, lag: LagSource, settings: Settings) -> None:
        """`settings`: those of the workers."""
        self.metrics = AutoscalerMetrics()
        self.latest: Lag | None = None
        self._policy, self._fleet, self._source = policy, fleet, lag
        self._requests = settings.topics.requests
        self._autoscaler, self._speed = Autoscaler(policy), SpeedMeter(settings.max_batch_size)
        self._left = WorkLeft(settings.max_open_requests)
        self._counters: dict[tuple[Member, int | None], Counters] = {}
        self._is_blind = False

    @property
    def speed_tok_s(self) -> float:
        """Of one worker, as measured so far."""
        return self._speed.speed_tok_s

    async def run(self, tasks: asyncio.TaskGroup, on_event: Callable[[str], None]) -> None:
        """Scale for ever; workers live in `tasks`, and each change is said in a line.

        Cancel: this is how it ends; the workers are the group's.
        """
        try:
            while True:
                await self.step(tasks, on_event)
                await asyncio.sleep(self._policy.interval_s)
        finally:
            await self._source.stop()

    async def step(self, tasks: asyncio.TaskGroup, on_event: Callable[[str], None]) -> Verdict:
        """Read once, decide, and add or drain. Cancel: safe; nothing is half done."""
        self.latest = await self._read_lag(on_event)
        await self._read_workers()
        reading = self._reading(self.latest)
        verdict = self._autoscaler.decide(reading)
        count = reading.workers.count
        if verdict.desired != count:
            on_event(f"{count} -> {_workers(verdict.desired)}: {verdict.reason}")
            self.metrics.count_event(count, verdict.desired)
            self._change(tasks, verdict.desired - count)
        self.metrics.desired.set(verdict.desired)
        self.metrics.speed.set(self._speed.speed_tok_s)
        self.metrics.show(self._fleet.workers)
        return verdict

    async def _read_lag(self, on_event: Callable[[str], None]) -> Lag | None:
        try:
            lag = await self._source.read()
        except HeadraceError as problem:
            self.metrics.blind.inc()
            if not self._is_blind:
                on_event(f"the lag is unknown, workers stay as they are: {problem}")
            self._is_blind = True
            return None
        self._is_blind = False
        return lag

    async def _read_workers(self) -> None:
        ready = [one for one in self._fleet.members if one.is_ready]
        async with asyncio.TaskGroup() as asking:
            asked = {
                one: asking.create_task(asyncio.to_thread(_counters, one), name="scaler.read")
                for one in ready
            }
        self._counters = {
            (one, one.supervised.pid): found
            for one, task in asked.items()
            if (found := task.result())
        }
        self._speed.see(time.monotonic(), self._counters)

    def _reading(self, lag: Lag | None) -> Reading:
        now_s = time.monotonic()
        if lag is not None and now_s - lag.read_at_s > self._policy.stale_s:
            lag = None
        return Reading(
            now_s,
            None if lag is None else self._backlog(lag),
            self._fleet.workers,
            self._speed.speed_tok_s,
            self._speed.rate_tok_s,
            self._fleet.expected_start_s(),
        )

    def _backlog(self, lag: Lag) -> Backlog:
        of_requests = lag.of(self._requests)
        left = self._left.tokens(of_requests.records, of_requests.tokens, self._counters)
        return backlog_of(lag, self._requests, left)

    def _change(self, tasks: asyncio.TaskGroup, by: int) -> None:
        for _ in range(by):
            self._fleet.add(tasks)
        for member in self._least_missed()[: max(0, -by)]:
            self._fleet.drain(member)

    def _least_missed(self) -> list[Member]:
        """Those that do not work yet, then those with the fewest streams, then the newest."""
        staying = [one for one in self._fleet.members if not one.is_draining]
        rows = {one: found.rows for (one, _), found in self._counters.items()}
        return sorted(staying, key=lambda one: (one.is_ready, rows.get(one, 0.0), -one.added_s))


def backlog_of(lag: Lag, requests: str, tokens_left: int) -> Backlog:
    """The lag as the decision takes it. A cancel that waits for a worker is unfinished, too."""
    with_work = {one.partition for one in lag.partitions if one.records}
    return Backlog(
        records=lag.records,
        tokens=tokens_left,
        num_partitions=max(1, len(lag.of(requests).partitions)),
        partitions_with_work=len(with_work),
    )


def _counters(member: Member) -> Counters | None:
    program = member.supervised.program
    return read_counters(program.ready_host, program.ready_port)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"
