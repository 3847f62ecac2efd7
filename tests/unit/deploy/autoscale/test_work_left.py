"""How much of the lag is still to be done."""

from headrace.deploy.autoscale.speed import Counters
from headrace.deploy.autoscale.work_left import SETTLED_READINGS, WorkLeft

FULL_OPEN = 100


def holding(rows: float, waiting: float = 0.0) -> Counters:
    return Counters(0.0, 0.0, rows, waiting)


def settled(left: WorkLeft, records: int, workers: dict[str, Counters]) -> int:
    """The answer once the same workers were there for long enough; 10 tokens a record."""
    answers = [left.tokens(records, 10 * records, workers) for _ in range(SETTLED_READINGS + 1)]
    return answers[-1]


def test_without_a_worker_all_of_it_is_left() -> None:
    """Nobody has taken anything."""
    assert WorkLeft(FULL_OPEN).tokens(500, 5000, {}) == 5000


def test_what_runs_is_half_done() -> None:
    """Twenty run, ten wait: twenty left."""
    assert settled(WorkLeft(FULL_OPEN), 30, {"a": holding(20, 10)}) == 200


def test_what_nobody_holds_is_finished_where_there_is_room() -> None:
    """A long answer at the head of its partition; 280 behind it are done and not committed."""
    assert settled(WorkLeft(FULL_OPEN), 300, {"a": holding(10), "b": holding(10)}) == 100


def test_a_full_worker_has_not_read_all() -> None:
    """One that holds all it may leaves the rest in Kafka."""
    left = settled(WorkLeft(FULL_OPEN), 400, {"a": holding(32, 68), "b": holding(10)})
    assert left == 10 * (290 + 68 + 21)


def test_what_was_finished_before_a_burst_stays_finished() -> None:
    """The burst fills the worker: only what came is new."""
    left = WorkLeft(FULL_OPEN)
    settled(left, 300, {"a": holding(20)})
    assert left.tokens(800, 8000, {"a": holding(32, 68)}) == 10 * (420 + 68 + 16)


def test_a_worker_that_has_just_come_has_read_nothing_yet() -> None:
    """Nor has one in a rebalance: what it does not hold is not finished."""
    left = WorkLeft(FULL_OPEN)
    assert left.tokens(500, 5000, {"a": holding(0)}) == 5000


def test_nothing_is_left_of_nothing() -> None:
    """No division by it either, whatever a worker still says."""
    assert settled(WorkLeft(FULL_OPEN), 0, {"a": holding(3)}) == 0
