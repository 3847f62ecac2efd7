"""Grammars: which tokens may come next, for schemas of many kinds."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headrace.models import constraints
from headrace.models.constraints import Constraint, GrammarCompiler, GrammarError
from headrace.models.request import EngineError, EngineErrorCode, SamplingParams
from headrace.models.sampler import SampleRow, sample
from tests.schemas_of_answers import SCHEMAS, closing_bias, is_valid, random_ids
from tests.tiny_model import make_tiny_tokenizer
from tests.unit.models.pieces import byte_fallback_tokenizer, byte_level_tokenizer

EOS, VOCAB = 2, 540
"""More logits than the tokenizer has tokens, as many models have."""


@cache
def tokenizer() -> Any:
    return make_tiny_tokenizer()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), vocab_size=VOCAB, eos_ids={EOS})


def allowed(constraint: Constraint) -> set[int]:
    """The ids that may come next."""
    words = constraint.bitmask().tolist()
    return {32 * at + bit for at, word in enumerate(words) for bit in range(32) if word >> bit & 1}


def follow(compiler: GrammarCompiler, schema: dict[str, Any], text: str) -> Constraint | None:
    """The constraint behind a text that came character by character; None if it may not come."""
    constraint = compiler.compile(json.dumps(schema)).start()
    for character in text:
        for token in tokenizer()(character, add_special_tokens=False)["input_ids"]:
            if token not in allowed(constraint):
                return None
            constraint.accept(token)
    return constraint


def after(compiler: GrammarCompiler, schema: dict[str, Any], text: str) -> Constraint:
    """The constraint behind a text that may come."""
    constraint = follow(compiler, schema, text)
    assert constraint is not None
    return constraint


def may_come(compiler: GrammarCompiler, schema: dict[str, Any], text: str) -> bool:
    """Whether an answer may be just this text."""
    constraint = follow(compiler, schema, text)
    return constraint is not None and EOS in allowed(constraint)


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_chosen_the_answer_follows_its_schema(
    name: str, compiler: GrammarCompiler
) -> None:
    """Twenty answers by chance: each ends, is JSON, and is what the schema says."""
    schema, bias = SCHEMAS[name], closing_bias(tokenizer())
    grammar = compiler.compile(json.dumps(schema))
    texts = set()
    for seed in range(20):
        ids = random_ids(grammar.start(), bias, vocab_size=VOCAB, seed=seed, max_tokens=3_000)
        assert ids[-1] == EOS
        text = tokenizer().decode(ids, skip_special_tokens=True)
        assert is_valid(text, schema), text
        texts.add(text)
    assert len(texts) > 1


@pytest.mark.parametrize("text", ['{"a":1}', '{"a": 1}', '{\n    "a": 1\n}', '{"a":-0,"b":[{}]}'])
def test_any_object_is_json_object(text: str, compiler: GrammarCompiler) -> None:
    """Compact, with spaces, or over several lines."""
    assert may_come(compiler, {"type": "object"}, text)


@pytest.mark.parametrize("text", ["[]", '"a"', "1", "", " {}", "{}\n", "{'a':1}", "{\n\n}", "{  }"])
def test_nothing_else_is_json_object(text: str, compiler: GrammarCompiler) -> None:
    """Other values, other syntax, and white space that might go on for ever."""
    assert not may_come(compiler, {"type": "object"}, text)


def test_the_turn_may_end_exactly_where_the_answer_may(compiler: GrammarCompiler) -> None:
    """A number may go on or end; behind a whole object nothing else may come."""
    schema = {"type": "integer"}
    assert EOS not in allowed(after(compiler, schema, "-"))
    assert {EOS} < allowed(after(compiler, schema, "-1"))
    constraint = after(compiler, {"type": "object"}, "{}")
    assert allowed(constraint) == {EOS}
    assert not constraint.is_complete
    constraint.accept(EOS)
    assert constraint.is_complete


def test_special_and_padded_ids_may_never_come(compiler: GrammarCompiler) -> None:
    """Inside a string, where nearly everything may."""
    found = allowed(after(compiler, {"type": "string"}, '"'))
    assert len(found) > 300
    assert found.isdisjoint(tokenizer().all_special_ids)
    assert max(found) < len(tokenizer())


def test_half_a_character_must_be_ended(compiler: GrammarCompiler) -> None:
    """A character may be several byte tokens: the quote comes behind the last of them."""
    first, *others = tokenizer()("𝄞", add_special_tokens=False)["input_ids"]
    assert len(others) == 3
    quote = tokenizer().convert_tokens_to_ids('"')
    constraint = after(compiler, {"type": "string"}, '"')
    for token in (first, *others):
        assert token in allowed(constraint)
        constraint.accept(token)
        assert (quote in allowed(constraint)) is (token == others[-1])


def test_a_token_may_span_what_the_grammar_keeps_apart() -> None:
    """`{"` is one token here, `":` another."""
    pieces = [b'{"', b"a", b'":', b"1", b"}", b"{", b'"', b":", b'":1}']
    compiler = GrammarCompiler(byte_level_tokenizer(pieces), vocab_size=10, eos_ids={9})
    constraint = compiler.compile(
        '{"type":"object","properties":{"a":{"const":1}},"required":["a"],'
        '"additionalProperties":false}'
    ).start()
    for token, expected in ((0, {0, 5}), (1, {1}), (8, {2, 6, 8}), (9, {9})):
        assert allowed(constraint) == expected
        constraint.accept(token)
    assert constraint.is_complete


def test_tokenizers_with_byte_fallback() -> None:
    """As Llama 2's: spaces are ▁, and bytes have tokens of their own."""
    pieces = ["{", "}", '"a"', '▁"a"', ":", "▁1"]
    compiler = GrammarCompiler(byte_fallback_tokenizer(pieces), vocab_size=263, eos_ids={262})
    schema = '{"type":"object","properties":{"a":{"const":1}},"required":["a"]}'
    constraint = compiler.compile(schema).start()
    for token in (256, 259, 260, 261, 257, 262):
        assert token in allowed(constraint)
        constraint.accept(token)
    assert constraint.is_complete


def test_an_escaped_name_does_not_get_past_its_property(compiler: GrammarCompiler) -> None:
    r"""`"\u0061"` is the name "a", which must be an integer."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert may_come(compiler, schema, '{"b":"x"}')
    assert not may_come(compiler, schema, r'{"\u0061":"x"}')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"const": 'a\n\t"\\é𝄞/'}, r'"a\n\t\"\\é𝄞/"'),
        ({"const": r"C:\apps\x01"}, r'"C:\\apps\\x01"'),
        ({"pattern": r"^[\u0041-\u005a]\x7e[a-zß]$"}, '"Q~ß"'),
    ],
)
def test_what_can_be_written_is(
    schema: dict[str, Any], text: str, compiler: GrammarCompiler
) -> None:
    """Escapes where JSON needs them, all other characters as they are."""
    assert may_come(compiler, schema, text)
    assert is_valid(text, schema)


def test_options_in_a_schema_have_no_effect(compiler: GrammarCompiler) -> None:
    """The library's own extension could switch off what is promised."""
    options = {"lenient": True, "whitespace_pattern": "x*", "json_allowed_escapes": "u"}
    assert not may_come(compiler, {"type": "object", "x-guidance": options}, "{x}")
    with pytest.raises(GrammarError, match=r'Unimplemented keys: \["not"\]'):
        compiler.compile(json.dumps({"not": {}, "x-guidance": options}))


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"type": "thing"}, "Invalid type: thing"),
    ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
    ({"type": "string", "pattern": "(?=a)"}, "look-around, including look-ahead"),
    ({"type": "string", "pattern": "("}, "unclosed group"),
    ({"type": "string", "format": "zip"}, "Unknown format: zip"),
    ({"$ref": "#/$defs/x"}, "Pointer '/$defs/x' does not exist"),
    ({"$ref": "https://example.com/x"}, "Resource 'https://example.com/x' is not present"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "Unsatisfiable schema"),
    ({"properties": []}, "properties must be an object"),
    ({"const": "a\x01b"}, "it names a control character"),
    ({"enum": [{"a": ["\x7f"]}]}, "it names a control character"),
    ({"properties": {"a\x1f": {}}}, "it names a control character"),
    ({"type": "string", "pattern": r"^a\x01$"}, "it names a control character"),
    ({"type": "string", "pattern": r"[\u0000-\u001F]"}, "it names a control character"),
    ({"type": "string", "pattern": r"\u{7f}|\p{Cc}"}, "it names a control character"),
    ({"patternProperties": {r"^\v": {}}}, "it names a control character"),
]


@pytest.mark.parametrize(("schema", "reason"), UNSUPPORTED)
def test_what_cannot_be_followed_is_refused(
    schema: dict[str, Any], reason: str, compiler: GrammarCompiler
) -> None:
    """The text says what is wrong, in one short line."""
    with pytest.raises(GrammarError) as refused:
        compiler.compile(json.dumps(schema))
    assert str(refused.value).startswith(f"this schema cannot be followed: {reason}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        '{"items":' * 200 + "{}" + "}" * 200,
        r'{"const": "\ud800"}',
        r'{"properties": {"\udfff": {}}}',
        "true",
        "[]",
        '{"maximum": 1e999}',
        '{"const": NaN}',
    ],
    ids=range(7),
)
def test_what_only_the_library_cannot_read_is_refused(
    schema: str, compiler: GrammarCompiler
) -> None:
    """Python's JSON takes them; the request was tried again and again, and ended as a failure of
    ours.
    """
    with pytest.raises(GrammarError):
        compiler.compile(schema)


def test_a_schema_that_explodes_is_refused(compiler: GrammarCompiler) -> None:
    """4^6 ways to combine six choices of four; the text does not quote the library's insides."""
    choices = [
        [{"type": "object", "properties": {f"p{i}{j}": {"type": "string"}}} for j in range(4)]
        for i in range(6)
    ]
    with pytest.raises(GrammarError, match=r": it is too complex$"):
        compiler.compile(json.dumps({"allOf": [{"anyOf": choice} for choice in choices]}))


def test_a_tokenizer_that_the_library_does_not_know() -> None:
    """Its requests are refused; text answers are not affected."""
    backend = Tokenizer(models.WordLevel(vocab={"a": 0, "</s>": 1}, unk_token="a"))
    unknown = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    with pytest.raises(GrammarError, match="not with this model's tokenizer"):
        GrammarCompiler(unknown, vocab_size=2, eos_ids={1}).compile("{}")


def test_grammars_are_compiled_once_and_the_oldest_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache is bounded; what was used last stays."""
    monkeypatch.setattr(constraints, "MAX_CACHED_GRAMMARS", 2)
    compiler = GrammarCompiler(tokenizer(), vocab_size=VOCAB, eos_ids={EOS})
    first, second = compiler.compile('{"const":1}'), compiler.compile('{"const":2}')
    assert compiler.compile('{"const":1}') is first
    compiler.compile('{"const":3}')
    assert compiler.compile('{"const":1}') is first
    assert compiler.compile('{"const":2}') is not second


def test_generations_of_one_grammar_do_not_touch_each_other(compiler: GrammarCompiler) -> None:
    """Each has its own place, and the grammar stays at its beginning."""
    grammar = compiler.compile('{"enum":["ab","cd"]}')
    one, other = grammar.start(), grammar.start()
    beginning = allowed(one)
    one.accept(min(beginning))
    assert allowed(other) == allowed(grammar.start()) == beginning != allowed(one)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_that_cannot_go_on_fails_its_row_only(
    temperature: float, compiler: GrammarCompiler
) -> None:
    """A token that was not allowed (a journal of another version, say) leaves nothing to choose."""
    grammar = compiler.compile('{"type":"object"}')
    stuck = grammar.start()
    stuck.accept(7)
    params = SamplingParams(temperature=temperature, seed=3)
    rows = [
        SampleRow(params, [1], []),
        SampleRow(params, [1], [7], stuck),
        SampleRow(params, [1], [], grammar.start()),
    ]
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    alone = [sample(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)]
    results = sample(logits, rows)
    assert [results[0], results[2]] == [alone[0], alone[2]]
    assert isinstance(results[1], EngineError)
    assert results[1].code is EngineErrorCode.INTERNAL_ERROR


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, logit_bias={10: 100.0}),
        SamplingParams(temperature=2.0, logit_bias={10: 100.0}),
        SamplingParams(temperature=0.0, repetition_penalty=1e-40),
        SamplingParams(top_k=50, frequency_penalty=-2.0, logit_bias={10: 100.0}),
        SamplingParams(top_p=0.9999, min_p=0.0),
    ],
)
def test_no_parameter_makes_a_forbidden_token_possible(
    params: SamplingParams, compiler: GrammarCompiler
) -> None:
    """Not even where all that is allowed has the lowest logit that there is."""
    constraint = compiler.compile('{"enum":["ab","cd"]}').start()
    for logits in (torch.zeros(1, VOCAB), torch.full((1, VOCAB), 3e38)):
        for token in allowed(constraint):
            logits[0, token] = -3e38
        (chosen,) = sample(logits, [SampleRow(params, [10], [10] * 5, constraint)])
        assert chosen in allowed(constraint)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_demonstration_models_tokenizer() -> None:
    """SmolLM2's 49,152 tokens: answers by chance follow each schema."""
    from headrace.models.store import resolve_model

    smollm2: Any = AutoTokenizer.from_pretrained(Path(resolve_model("smollm2-135m")))
    compiler = GrammarCompiler(smollm2, vocab_size=49_152, eos_ids={smollm2.eos_token_id})
    bias = closing_bias(smollm2)
    for schema in SCHEMAS.values():
        grammar = compiler.compile(json.dumps(schema))
        ids = random_ids(grammar.start(), bias, vocab_size=49_152, seed=1, max_tokens=2_000)
        assert is_valid(smollm2.decode(ids, skip_special_tokens=True), schema)
