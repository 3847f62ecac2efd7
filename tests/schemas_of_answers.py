"""JSON schemas of many kinds, and a way to let chance write answers to them."""

import json
from typing import Any

import torch
from jsonschema import Draft202012Validator

from headrace.models.constraints import Constraint
from headrace.models.request import SamplingParams
from headrace.models.sampler import SampleRow, sample

CLOSING = '"}]'

SCHEMAS: dict[str, dict[str, Any]] = {
    "enum": {"enum": ["red", "grün", "青い", 3, None, True, {"a": [1]}]},
    "nested": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "home": {
                "type": "object",
                "properties": {"zip": {"type": "integer"}, "is_big": {"type": "boolean"}},
                "required": ["zip", "is_big"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "home"],
        "additionalProperties": False,
    },
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"const": "é"}, "c": {"enum": [1, 2]}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "additional": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
    },
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    "tuple": {"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": False},
    "integers": {"type": "array", "items": {"type": "integer", "minimum": -7, "maximum": 12}},
    "multiples": {"type": "array", "items": {"type": "integer", "multipleOf": 5}, "maxItems": 4},
    "number": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "text": {"type": "string", "minLength": 3, "maxLength": 8},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}(äöü)?$"},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]},
    "types": {"type": ["boolean", "null", "array"], "items": {"type": "null"}, "maxItems": 3},
    "one of": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, kind: {"type": "boolean"}},
                "required": ["kind", kind],
                "additionalProperties": False,
            }
            for kind in ("cat", "dog")
        ]
    },
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "boolean"},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
    },
}


def closing_bias(tokenizer: Any) -> dict[int, float]:
    """A bias towards tokens that close something, so that answers by chance come to an end."""
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(len(tokenizer))}
    bias = {token: 4.0 for token, text in texts.items() if any(c in text for c in CLOSING)}
    return {**bias, tokenizer.eos_token_id: 8.0}


def random_ids(
    constraint: Constraint, bias: dict[int, float], *, vocab_size: int, seed: int, max_tokens: int
) -> list[int]:
    """An answer of random tokens, up to its end-of-turn token."""
    generator = torch.Generator().manual_seed(seed)
    params = SamplingParams(seed=seed, logit_bias=bias)
    ids: list[int] = []
    while not constraint.is_complete and len(ids) < max_tokens:
        logits = torch.randn(1, vocab_size, generator=generator)
        (token,) = sample(logits, [SampleRow(params, [0], ids, constraint)])
        assert isinstance(token, int)
        constraint.accept(token)
        ids.append(token)
    return ids


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether the text is JSON that follows the schema."""
    return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
