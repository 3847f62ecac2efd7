"""Answers by chance follow whatever schema they are held to."""

import json
from functools import cache
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.models.constraints import GrammarCompiler
from tests.schemas_of_answers import closing_bias, is_valid, random_ids
from tests.tiny_model import VOCAB_SIZE, make_tiny_tokenizer

characters = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n\t\r\\"')
names = st.text(characters, min_size=1, max_size=6)
values = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(characters, max_size=8)
leaves = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}]),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-500, 500),
        st.integers(0, 2_000),
    ),
    st.builds(
        lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
        st.integers(0, 4),
        st.integers(0, 6),
    ),
    st.builds(lambda value: {"const": value}, values),
    st.builds(lambda found: {"enum": found}, st.lists(values, min_size=1, max_size=5)),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(names, inner, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": draw(st.sampled_from([False, {"type": "boolean"}])),
    }


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        objects(inner),
        st.builds(
            lambda items, least, span: {
                "type": "array",
                "items": items,
                "minItems": least,
                "maxItems": least + span,
            },
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(lambda found: {"anyOf": found}, st.lists(inner, min_size=1, max_size=3)),
    )


@cache
def compiler() -> tuple[GrammarCompiler, Any]:
    tokenizer = make_tiny_tokenizer()
    eos_ids = {tokenizer.eos_token_id}
    return GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_ids=eos_ids), tokenizer


@settings(deadline=None, max_examples=60)
@given(schema=st.recursive(leaves, nested, max_leaves=8), seed=st.integers(0, 2**32))
def test_answers_by_chance_are_valid(schema: dict[str, Any], seed: int) -> None:
    """Any nesting, any names, any text. Those that are not at their end soon are left out."""
    grammars, tokenizer = compiler()
    constraint = grammars.compile(json.dumps(schema)).start()
    bias = closing_bias(tokenizer)
    ids = random_ids(constraint, bias, vocab_size=VOCAB_SIZE, seed=seed, max_tokens=500)
    assume(constraint.is_complete)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert is_valid(text, schema), text
