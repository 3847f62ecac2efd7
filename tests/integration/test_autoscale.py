"""The autoscaler with real workers: from nothing and back, and no token lost."""

import asyncio
from pathlib import Path

import pytest

from headrace.consumers.lag_service import LagService
from headrace.deploy.autoscale.fleet import Fleet
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.autoscale.scaler import Scaler
from headrace.deploy.local_services import changed
from headrace.deploy.programs import worker_program
from tests.pipeline import Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

QUICK = Policy(0, 1, target_s=0.5, window_s=2.0, interval_s=0.25)


async def test_workers_come_with_the_requests_and_go_after_them(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Requests wait while nobody is there; then 0 -> 1 -> 0, and each is answered once."""
    settings = changed(pipeline.settings, threads=1)
    said: list[str] = []
    fleet = Fleet(
        lambda number: worker_program(settings, tmp_path, number, 2),
        stop_timeout_s=30,
        on_note=said.append,
    )
    lag = LagService(settings)
    scaler = Scaler(QUICK, fleet, lag, settings)
    body = {"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 64}
    names = [await pipeline.ask(body, key=f"s{n}") for n in range(8)]
    async with asyncio.TaskGroup() as tasks:
        scaling = tasks.create_task(scaler.run(tasks, said.append))
        await pipeline.finished(names)
        async with asyncio.timeout(60):
            while fleet.members:  # noqa: ASYNC110 - processes end
                await asyncio.sleep(0.1)
        scaling.cancel()
    changes = [line.partition(":")[0] for line in said]
    assert changes == ["0 -> 1 worker", "1 -> 0 workers"]
    assert {pipeline.replies[name].finish_reason for name in names} <= {"length", "stop"}
    assert sum(pipeline.replies[name].num_dropped for name in names) == 0
    await pipeline.all_committed()
