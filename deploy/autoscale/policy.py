"""What an autoscaler is told: bounds, the backlog it aims at, and how long it waits. Plain data."""

import re
from dataclasses import dataclass

MAX_WORKERS = 64

_BOUNDS = re.compile(r"([0-9]{1,3})\.\.([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class Policy:
    """Units: seconds. The defaults suit answers of some ten seconds."""

    min_workers: int
    max_workers: int
    target_s: float = 10.0
    """The backlog should be this much work for the workers that there are."""
    window_s: float = 60.0
    """Fewer workers must have been enough for this long before one goes; longer than usual answers,
    and than the swings of the load that should not show.
    """
    out_pause_s: float = 10.0
    """After a decision to add workers, or after one came or went, before more are added: each join
    is a rebalance, in which the figures say little. Longer where a start takes long.
    """
    in_pause_s: float = 30.0
    """After a worker came or went, before one goes; a shorter window shortens it."""
    stale_s: float = 15.0
    """A lag that is older says nothing."""
    interval_s: float = 2.0
    """Between two readings."""
    stuck_s: float = 300.0
    """A start that takes longer does not hold back anything any more."""


def parse_bounds(text: str) -> tuple[int, int]:
    """The two numbers of `MIN..MAX`.

    Raises: ValueError that says what is wrong.
    """
    found = _BOUNDS.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not MIN..MAX, for example 0..4")
    low, high = int(found[1]), int(found[2])
    if not 1 <= high <= MAX_WORKERS:
        raise ValueError(f"MAX must be 1 to {MAX_WORKERS}")
    if low > high:
        raise ValueError(f"MIN {low} is above MAX {high}")
    return low, high
