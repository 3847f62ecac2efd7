"""Bounds on the JSON schema that a request's `response_format` brings, so that compiling it takes a
second at the most.

It does not know JSON Schema beyond that: what a schema says is judged where it is compiled.
"""

from collections.abc import Iterator
from decimal import Decimal
from math import prod
from typing import Any

import orjson

MAX_SCHEMA_BYTES = 65_536
"""As compact JSON."""

MAX_SCHEMA_ENTRIES = 1_000
"""Of each object and array in it: properties, enum values, alternatives."""

MAX_MULTIPLE = 100_000
"""An automaton that counts remainders has as many states: 100,003 took 0.2 s, 1,234,567 13 s and
0.6 GB.
"""


def check_bounds(schema: dict[str, Any]) -> None:
    """Raises: ValueError with what is too large."""
    if len(orjson.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"must have at most {MAX_SCHEMA_BYTES} bytes")
    multiples = set()
    for part in _containers(schema):
        if len(part) > MAX_SCHEMA_ENTRIES:
            raise ValueError(f"may list at most {MAX_SCHEMA_ENTRIES} things in one place")
        if isinstance(part, dict):
            multiples.add(_digits(part.get("multipleOf")))
    if prod(multiples) > MAX_MULTIPLE:
        raise ValueError(f"may count in multiples of at most {MAX_MULTIPLE}, all taken together")


def _containers(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """All objects and arrays in a JSON value, itself included."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict | list):
            yield part
            waiting += part.values() if isinstance(part, dict) else part


def _digits(number: Any) -> int:
    """The number without its decimal point and the zeros at its ends; 1 where there is none."""
    if isinstance(number, bool) or not isinstance(number, int | float) or number == 0:
        return 1
    return int("".join(map(str, Decimal(repr(number)).normalize().as_tuple().digits)))
