"""Measured values and their percentiles: exact up to a bound, a fair sample of them beyond it.

Knows nothing of what is measured.
"""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

MAX_SAMPLES = 1_000_000
"""Of each figure: 8 MB a column. Beyond it, every value has the same chance to be among them."""

PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}

STATISTICS = ("mean", *PERCENTS)


class Samples:
    """Rows of numbers, one column or more."""

    def __init__(self, num_columns: int = 1, *, limit: int = MAX_SAMPLES) -> None:
        self._columns = [array("d") for _ in range(num_columns)]
        self._limit, self._rng = limit, Random(0)
        self.num_seen = 0
        """Rows that were added; more than are kept where the bound was reached."""

    @property
    def is_exact(self) -> bool:
        """Whether every row is kept."""
        return self.num_seen <= self._limit

    def add(self, *row: float) -> None:
        """One more row."""
        self.num_seen += 1
        if self.num_seen <= self._limit:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            return
        place = self._rng.randrange(self.num_seen)
        if place < self._limit:
            for column, value in zip(self._columns, row, strict=True):
                column[place] = value

    def column(self, number: int = 0) -> Any:
        """The values of a column, as a numpy array."""
        return np.frombuffer(self._columns[number], dtype=np.float64).copy()


def summary(values: Sequence[float] | Any) -> dict[str, float]:
    """`count`, `mean` and the percentiles; without values only the count.

    A percentile is the smallest value that so many percent of the values do not exceed, so it is
    always one that was measured.
    """
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        return {"count": 0}
    at = np.percentile(found, list(PERCENTS.values()), method="inverted_cdf")
    named = {name: float(value) for name, value in zip(PERCENTS, at, strict=True)}
    return {"count": int(found.size), "mean": float(found.mean()), **named}
