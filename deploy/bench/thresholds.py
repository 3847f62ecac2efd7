"""Limits on a run's figures, as `ttft_p99>2`: what `--fail-if` is given.

Sans I/O. Knows the names of figures by what it is given, not their meaning.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.errors import HeadraceError

_FORM = re.compile(r"\s*([a-z_0-9.]+)\s*(>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*")


class ThresholdError(HeadraceError):
    """A limit that cannot be read."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The run fails if `figure` is above (`>`), below (`<`), … `limit`."""

    figure: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.figure}{self.sign}{self.limit:g}"

    def is_met(self, value: float | None) -> bool:
        """Whether the run fails by this; also where there is no value, so that an empty run does
        not pass.
        """
        if value is None:
            return True
        return {
            ">": value > self.limit,
            "<": value < self.limit,
            ">=": value >= self.limit,
            "<=": value <= self.limit,
        }[self.sign]


def parse_threshold(text: str, names: Mapping[str, object] | frozenset[str]) -> Threshold:
    """Read `text`; the figure must be one of `names`. Raises: ThresholdError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ThresholdError(
            f"{text!r} is no limit: write a figure, a sign and a number: ttft_p99>2"
        )
    name, sign, number = found.groups()
    if name not in names:
        near = sorted(known for known in names if known.split("_")[0] == name.split("_")[0])
        known = ", ".join(near or sorted(names))
        raise ThresholdError(f"there is no figure {name!r}; there are {known}")
    return Threshold(name, sign, float(number))
