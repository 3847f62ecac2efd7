"""A short chaos run: real workers, ten kinds of fault, and no answer lost, doubled or different."""

from pathlib import Path

import pytest

from tests.chaos.plan import FaultKind, make_plan
from tests.chaos.report import problem_lines, table
from tests.chaos.run import Run, Watcher

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(420)]

KINDS = (
    FaultKind.WORKER_KILLED,
    FaultKind.WORKER_DRAINED,
    FaultKind.WORKER_PAUSED,
    FaultKind.WORKER_JOINS,
    FaultKind.WORKER_LEAVES,
    FaultKind.REDIS_RESTARTED,
    FaultKind.REDIS_FLUSHED,
    FaultKind.REDIS_CUT,
    FaultKind.REDIS_FULL,
    FaultKind.KAFKA_RESTARTED,
)
REQUESTS = 150
PACE = 0.5


async def test_every_answer_outlives_ten_kinds_of_fault(tmp_path: Path) -> None:
    """One of each, on two workers; the whole suite is `make chaos`."""
    plan = make_plan(5, requests=REQUESTS, faults=len(KINDS), kinds=KINDS, pace=PACE)
    run = Run(plan, tmp_path, Watcher(print, lambda answered, struck: None), workers=2)
    await run.run()
    print(table(run.book))
    assert problem_lines(run.book) == [], f"logs: {tmp_path}"
    assert {fault.kind for fault in run.book.faults} == set(KINDS)
    assert run.book.num_finished >= REQUESTS
