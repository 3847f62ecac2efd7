"""When the sessions of a load begin: drawn from the seed alone, whatever the server does.

Sans I/O. Times are seconds from the start of the run and never go back.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from headrace.producers.load_session import Session


@dataclass(frozen=True, slots=True)
class Arrival:
    """A session, and when its first turn is due."""

    due_s: float
    session: Session


def poisson_times(rate_per_s: float, *, seed: int) -> Iterator[float]:
    """Independent of each other, so that they bunch as people do. Raises: ValueError."""
    _check(rate_per_s)
    rng, now_s = Random(f"{seed}/arrivals"), 0.0
    while True:
        now_s += rng.expovariate(rate_per_s)
        yield now_s


def constant_times(rate_per_s: float) -> Iterator[float]:
    """Evenly spaced, from 0 on. Raises: ValueError."""
    _check(rate_per_s)
    number = 0
    while True:
        yield number / rate_per_s
        number += 1


def arrivals(times: Iterable[float], sessions: Iterable[Session]) -> Iterator[Arrival]:
    """One session at each of `times`."""
    for due_s, session in zip(times, sessions, strict=False):
        yield Arrival(due_s, session)


def _check(rate_per_s: float) -> None:
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise ValueError(f"a rate must be above 0, not {rate_per_s}")
