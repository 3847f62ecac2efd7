"""Requests that arrive as a rate over time says: seeded, the same for every policy. Pure."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NUM_PARTITIONS = 12
MEAN_TOKENS = 200
LONGEST_TOKENS = 2000
_SPREAD = 0.8
"""Sigma of the lognormal lengths: 9 of 10 are between 40 and 540 tokens."""

Rate = Callable[[float], float]
"""Requests per second at a time."""


@dataclass(frozen=True, slots=True)
class Load:
    """One shape, and the machine that it meets. Units: seconds."""

    name: str
    duration_s: float
    rate: Rate
    start_s: float = 20.0
    """What the start of a worker takes."""
    step_s: float | None = None
    """When the load becomes larger, if it does so at once."""


@dataclass(slots=True)
class Arrival:
    """A request and what is left of it."""

    time_s: float
    partition: int
    tokens: float

    @property
    def is_finished(self) -> bool:
        return self.tokens <= 0


def arrivals(load: Load, seed: int) -> Iterator[Arrival]:
    """Poisson arrivals with the load's rate, by thinning."""
    rng = random.Random(seed)
    highest = max(load.rate(float(second)) for second in range(int(load.duration_s)))
    now_s = 0.0
    while True:
        now_s += rng.expovariate(highest)
        if now_s >= load.duration_s:
            return
        if rng.random() * highest < load.rate(now_s):
            mu = math.log(MEAN_TOKENS) - _SPREAD**2 / 2
            tokens = min(LONGEST_TOKENS, max(1, round(rng.lognormvariate(mu, _SPREAD))))
            yield Arrival(now_s, rng.randrange(NUM_PARTITIONS), float(tokens))


def _step(now_s: float) -> float:
    return 10.0 if now_s >= 300 else 1.0


def _ramp(now_s: float) -> float:
    return 0.5 + 11.5 * max(0.0, 1 - abs(now_s - 900) / 900)


def _sawtooth(now_s: float) -> float:
    return 10.0 * (now_s % 30) / 30 if 120 <= now_s < 720 else 0.5


def _night_and_day(now_s: float) -> float:
    return 8.0 * max(0.0, math.sin(2 * math.pi * now_s / 3600))


LOADS = (
    Load("step", 1200, _step, step_s=300),
    Load("ramp", 1800, _ramp),
    Load("sawtooth", 900, _sawtooth),
    Load("night and day", 7200, _night_and_day),
    Load("slow model load", 1800, _step, start_s=120, step_s=300),
)
"""Step: 1 to 10 requests a second. Ramp: up to 12 and down within 30 minutes. Sawtooth: from 0 to
10 each 30 s, for 10 minutes. Night and day: half an hour of each, twice. Slow: the step again,
where a worker takes two minutes to start.
"""
