"""Shapes files: what is refused, and how that is said."""

import json
from pathlib import Path
from random import Random

import jsonschema
import pytest
from pydantic import TypeAdapter

from headrace.producers.load_shapes import BUILT_IN, ShapesError, parse_shapes, read_shapes
from headrace.producers.load_shapes import shapes_schema as schema
from headrace.producers.load_spread import Spread, draw, draw_count
from headrace.schemas.request import validate_request

FULL = {
    "name": "talk",
    "weight": 3,
    "turns": [2, 4],
    "think_s": {"kind": "exponential", "mean": 2.5, "max": 20},
    "system": "Be brief.",
    "prompt_words": {"kind": "lognormal", "median": 12, "sigma": 0.5},
    "shared_prefix_words": 50,
    "max_tokens": 40,
    "temperature": 0.7,
    "stop": ["\n\n"],
    "request": {"top_p": 0.9, "priority": 3},
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "no JSON"),
        ("{}", "the file must be an array, not an object"),
        ("[]", "the file must have at least 1 item(s)"),
        ('[{"turnz": 1}]', "0.turnz is unknown"),
        ('[{}, {"turns": [3, 1]}]', "1.turns must be [min, max], the smaller one first"),
        ('[{"turns": "x"}]', "0.turns must be a number, [min, max], or an object"),
        ('[{"turns": true}]', "0.turns must be a number, [min, max], or an object"),
        ('[{"turns": [1]}]', "0.turns must have at least 2 item(s)"),
        ('[{"think_s": {"kind": "normal"}}]', "0.think_s must be a number"),
        ('[{"think_s": {"kind": "exponential"}}]', "0.think_s.mean is required"),
        ('[{"think_s": -1}]', "0.think_s must be at least 0, not -1"),
        ('[{"weight": 0}]', "0.weight must be greater than 0, not 0"),
        ('[{"prompt_texts": []}]', "0.prompt_texts must have at least 1 item(s)"),
        ('[{"request": {"top_p": 3}}]', "0.request is refused: top_p: must be at most 1, not 3"),
        ('[{"request": {"stream": false}}]', "0.request may not hold stream"),
    ],
)
def test_a_bad_file_is_refused_with_the_field(text: str, said: str, tmp_path: Path) -> None:
    """The file, the path of the field, and what is allowed there."""
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(ShapesError) as caught:
        read_shapes(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the reason."""
    with pytest.raises(ShapesError, match=r"nix\.json: No such file"):
        read_shapes(tmp_path / "nix.json")


def test_the_schema_says_what_the_parser_takes() -> None:
    """For an editor that completes and checks the file."""
    jsonschema.validate([FULL], schema())
    (shape,) = parse_shapes(json.dumps([FULL]).encode())
    assert (shape.weight, shape.turns, shape.request) == (3.0, [2, 4], FULL["request"])


def test_built_in_shapes_pass_their_own_checks() -> None:
    """They are files that come along."""
    for shape in BUILT_IN.values():
        text = json.dumps([shape.model_dump(mode="json", exclude_none=True)])
        assert parse_shapes(text.encode()) == [shape]
        assert validate_request({"prompt": "x", **shape.request})


@pytest.mark.parametrize(
    ("spread", "low", "high", "mean"),
    [
        (3, 3, 3, 3),
        ([1, 5], 1, 5, 3),
        ({"kind": "exponential", "mean": 4, "max": 1000}, 0, 1000, 4),
        ({"kind": "exponential", "mean": 4, "max": 5}, 0, 5, 4 * (1 - 2.718281828**-1.25)),
        ({"kind": "lognormal", "median": 10, "sigma": 0.5}, 0, 1e6, 10 * 2.718281828**0.125),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(
    spread: object, low: float, high: float, mean: float
) -> None:
    """Range and mean of 20,000."""
    checked: Spread = TypeAdapter[Spread](Spread).validate_python(spread)
    rng = Random(1)
    found = [draw(checked, rng) for _ in range(20_000)]
    assert low <= min(found) <= max(found) <= high
    assert sum(found) / len(found) == pytest.approx(mean, rel=0.03)


def test_counts_of_a_range_are_equally_likely() -> None:
    """Its ends too; and a count is at least 1."""
    rng = Random(1)
    found = [draw_count([1, 4], rng) for _ in range(8000)]
    assert {1, 2, 3, 4} == set(found)
    assert all(found.count(n) == pytest.approx(2000, rel=0.1) for n in (1, 2, 3, 4))
    assert draw_count(0, rng) == 1
    assert draw_count([0.2, 0.4], rng) == 1
