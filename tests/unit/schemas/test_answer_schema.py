"""Bounds on the schema of an answer."""

from typing import Any

import pytest

from headrace.schemas.answer_schema import MAX_SCHEMA_BYTES, MAX_SCHEMA_ENTRIES, check_bounds

FULL: dict[str, Any] = {str(number): {} for number in range(MAX_SCHEMA_ENTRIES)}


def multiples(*numbers: Any) -> dict[str, Any]:
    """A schema that counts in all of these."""
    return {"allOf": [{"type": "number", "multipleOf": number} for number in numbers]}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"const": "x" * (MAX_SCHEMA_BYTES - len('{"const":""}'))},
        {"properties": FULL},
        {"properties": {"a": {"properties": FULL}, "b": {"anyOf": [FULL, FULL]}}},
        multiples(100_000),
        multiples(0.01, 0.5, 10, 1e15, 7),
        multiples(99_991, 99_991, -1e-9),
        multiples("x", True, None, {}, 0),
        {"properties": {"multipleOf": {"const": 1_234_567}}},
    ],
)
def test_within_the_bounds(schema: dict[str, Any]) -> None:
    """At them, and with what is no number where one should be."""
    check_bounds(schema)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"const": "x" * MAX_SCHEMA_BYTES}, "at most 65536 bytes"),
        ({"const": "é" * (MAX_SCHEMA_BYTES // 2)}, "at most 65536 bytes"),
        ({"properties": {**FULL, "x": {}}}, "at most 1000 things"),
        ({"anyOf": [{"anyOf": [{}] * (MAX_SCHEMA_ENTRIES + 1)}]}, "at most 1000 things"),
        (multiples(100_003), "multiples of at most 100000"),
        (multiples(-100_003), "multiples of at most 100000"),
        (multiples(1.00003), "multiples of at most 100000"),
        (multiples(97, 89 * 101), "multiples of at most 100000"),
    ],
)
def test_out_of_bounds(schema: dict[str, Any], problem: str) -> None:
    """Too long, too many in one place, too fine."""
    with pytest.raises(ValueError, match=problem):
        check_bounds(schema)
