"""How a number of a load differs from one draw to the next: constant, uniform or long-tailed.

Owns the form of a distribution in a shapes file and the drawing from it. Sans I/O.
"""

import math
from random import Random
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from headrace.schemas.wire import WireModel

MAX_NUMBER = 1_000_000.0

Number = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER)]


class _Distribution(WireModel):
    model_config = ConfigDict(extra="forbid")


class Exponential(_Distribution):
    """Many short ones and few long ones; `max` cuts the longest."""

    kind: Literal["exponential"]
    mean: Positive
    max: Positive = MAX_NUMBER


class LogNormal(_Distribution):
    """Half below `median`; `sigma` is the spread of the logarithm; `max` cuts the largest."""

    kind: Literal["lognormal"]
    median: Positive
    sigma: Annotated[float, Field(ge=0, le=5)]
    max: Positive = MAX_NUMBER


def _ascending(pair: list[float]) -> list[float]:
    if pair[0] > pair[1]:
        raise ValueError("must be [min, max], the smaller one first")
    return pair


Range = Annotated[list[Number], Field(min_length=2, max_length=2), AfterValidator(_ascending)]


def _kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return str(value.get("kind"))
    if isinstance(value, Exponential | LogNormal):
        return value.kind
    if isinstance(value, list):
        return "range"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else None


Spread = Annotated[
    Annotated[Number, Tag("number")]
    | Annotated[Range, Tag("range")]
    | Annotated[Exponential, Tag("exponential")]
    | Annotated[LogNormal, Tag("lognormal")],
    Discriminator(
        _kind,
        custom_error_type="spread_kind",
        custom_error_message="must be a number, [min, max], or an object whose kind is exponential "
        "or lognormal",
    ),
]
"""A number that is drawn anew each time: `3`, `[1, 5]`, or one of the objects above."""


def draw(spread: Spread, rng: Random) -> float:
    """One number, at least 0."""
    if isinstance(spread, list):
        return rng.uniform(spread[0], spread[1])
    if isinstance(spread, Exponential):
        return min(rng.expovariate(1 / spread.mean), spread.max)
    if isinstance(spread, LogNormal):
        return min(rng.lognormvariate(math.log(spread.median), spread.sigma), spread.max)
    return spread


def draw_count(spread: Spread, rng: Random) -> int:
    """One whole number, at least 1; each of a range's is as likely as any other."""
    if isinstance(spread, list):
        return max(1, rng.randint(math.ceil(spread[0]), max(math.ceil(spread[0]), int(spread[1]))))
    return max(1, round(draw(spread, rng)))
