"""No order of steps, faults and crashes breaks the promise, with the worker's own code.

And every rule of the protocol is needed: without it, schedules find what breaks. Many more
schedules: `python -m tests.explorer --help`.
"""

import pytest

from tests.explorer.bugs import BUGS
from tests.explorer.schedule import explore_one
from tests.explorer.stage import staged

pytestmark = pytest.mark.timeout(180)

NUM_PARTS, NUM_SCHEDULES = 4, 100

HUNTS: dict[str, tuple[str, ...]] = {
    "acks out of order": ("cancel", "crash"),
    "commit before publish": ("refuse", "rebalance"),
    "confirm without a fence": ("cut", "empty"),
    "keep the attempt of a journal in which nothing began": ("lose", "away", "crash"),
    "no fence": ("pause", "cut"),
    "no lease": ("cut", "away", "rebalance"),
    "publish before journal": ("crash", "lose"),
    "publish while journal is away": ("away", "crash", "lose"),
    "recreate journal with the old attempt": ("empty", "failover"),
    "session stored without a fence": ("pause", "cut", "tombstone"),
    "unjournaled although it may have been started": ("pause", "away"),
}
"""What has to go wrong for a rule to be needed."""

BEGIN_WITH = {
    "keep the attempt of a journal in which nothing began": "a",
    "no lease": "l",
    "publish before journal": "f",
    "publish while journal is away": "a",
    "session stored without a fence": "c",
}
"""Seeds that find them soon; any others do, too."""

MAX_HUNT = 2_000
"""Schedules until a planted bug must be found; most need a hundred."""


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_no_schedule_breaks_the_promise(part: int) -> None:
    """Of these seeds."""
    with staged():
        for number in range(NUM_SCHEDULES):
            schedule, problem, _ = explore_one(f"test-{part}-{number}")
            assert problem is None, f"test-{part}-{number}: {problem}\n{schedule}"


@pytest.mark.parametrize("name", HUNTS)
def test_without_any_of_its_rules_the_promise_breaks(name: str) -> None:
    """So the explorer can fail, and no rule is there for nothing."""
    with staged(), BUGS[name]():
        seed = f"{BEGIN_WITH[name]}-{name}" if name in BEGIN_WITH else name
        found = (explore_one(f"{seed}-{n}", HUNTS[name])[1] for n in range(MAX_HUNT))
        assert any(problem is not None for problem in found)


def test_a_schedule_runs_the_same_twice() -> None:
    """What is found can be replayed and made smaller."""
    with staged():
        runs = [explore_one("test-twice") for _ in range(2)]
    first, second = ((schedule, world.counts, world.broker.events) for schedule, _, world in runs)
    assert first == second
