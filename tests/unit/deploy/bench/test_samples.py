"""Percentiles."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.bench.samples import PERCENTS, Samples, summary


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300))
def test_percentiles_are_values_that_were_measured(values: list[float]) -> None:
    """The smallest one that so many percent of all do not exceed."""
    found = summary(values)
    for name, percent in PERCENTS.items():
        share = Fraction(str(percent)) / 100
        reached = [v for v in values if sum(w <= v for w in values) >= share * len(values)]
        assert found[name] == min(reached), name
    assert found["count"] == len(values)
    assert found["mean"] == pytest.approx(sum(values) / len(values))


def test_nothing_measured_has_no_percentiles() -> None:
    """Only a count."""
    assert summary([]) == {"count": 0}


def test_beyond_the_bound_a_fair_sample_is_kept() -> None:
    """Rows stay together, and early ones are as likely to be kept as late ones."""
    samples = Samples(2, limit=1000)
    for number in range(10_000):
        samples.add(number, -number)
    first, second = samples.column(0), samples.column(1)
    assert (samples.is_exact, samples.num_seen, len(first)) == (False, 10_000, 1000)
    assert list(first) == [-value for value in second]
    assert first.mean() == pytest.approx(5000, rel=0.06)


def test_up_to_the_bound_every_row_is_kept() -> None:
    """In order."""
    samples = Samples(limit=3)
    for value in (3.0, 1.0, 2.0):
        samples.add(value)
    assert (samples.is_exact, list(samples.column())) == (True, [3.0, 1.0, 2.0])
