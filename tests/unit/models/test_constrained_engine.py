"""Answers of a prescribed form from a real engine on a tiny model with random weights."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.models.constraints import Grammar, GrammarCompiler
from headrace.models.loading import LoadedModel
from headrace.models.request import (
    EngineErrorCode,
    EngineRequest,
    FinishReason,
    SamplingParams,
)
from tests.schemas_of_answers import SCHEMAS, closing_bias, is_valid
from tests.unit.models.engine_run import MakeEngine

EOS_ID = 2
NUMBER = {"type": "integer"}
PROMPT = [5, 60, 7]


@pytest.fixture(scope="module")
def compiler(tiny_model: LoadedModel) -> GrammarCompiler:
    return GrammarCompiler(
        tiny_model.tokenizer, vocab_size=tiny_model.vocab_size, eos_ids=tiny_model.eos_ids
    )


@pytest.fixture(scope="module")
def bias(tiny_model: LoadedModel) -> dict[int, float]:
    """Random weights would else write strings for ever."""
    return closing_bias(tiny_model.tokenizer)


def request(
    key: str,
    grammar: Grammar | None,
    *,
    max_tokens: int = 400,
    generated_ids: Sequence[int] = (),
    **sampling: Any,
) -> EngineRequest:
    return EngineRequest(
        key,
        PROMPT,
        max_tokens,
        generated_ids=list(generated_ids),
        sampling=SamplingParams(**sampling),
        grammar=grammar,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_follows_its_schema(
    temperature: float, make_engine: MakeEngine, compiler: GrammarCompiler, bias: dict[int, float]
) -> None:
    """All kinds of schemas in one batch, with free rows beside them: JSON here, anything there."""
    requests = [
        request(
            name,
            compiler.compile(json.dumps(schema)),
            temperature=temperature,
            seed=at,
            logit_bias=bias,
        )
        for at, (name, schema) in enumerate(SCHEMAS.items())
    ]
    free = [request(f"free {t}", None, max_tokens=30, temperature=t, seed=5) for t in (0.0, 1.0)]
    run = make_engine(max_batch_size=32, max_batch_tokens=256)
    alone = {one.key: run.run_one(one).token_ids for one in free}
    answers = run.run(*requests, *free)
    for name, schema in SCHEMAS.items():
        answer = answers[name]
        assert answer.finish_reason is FinishReason.STOP, (name, answer.text)
        assert answer.token_ids[-1] == EOS_ID
        assert is_valid(answer.text, schema), (name, answer.text)
    assert {one.key: answers[one.key].token_ids for one in free} == alone


@pytest.mark.parametrize("name", ["nested", "recursive", "text"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_resumed_at_every_point_equals_undisturbed(
    name: str,
    temperature: float,
    make_engine: MakeEngine,
    compiler: GrammarCompiler,
    bias: dict[int, float],
) -> None:
    """In the middle of a name, a number, a character: the rest is what it would have been."""
    grammar = compiler.compile(json.dumps(SCHEMAS[name]))
    sampling: dict[str, Any] = {"temperature": temperature, "seed": 11, "logit_bias": bias}
    run = make_engine(max_batch_size=16)
    whole = run.run_one(request("whole", grammar, **sampling))
    assert whole.finish_reason is FinishReason.STOP
    points = range(min(len(whole.token_ids), 40))
    answers = run.run(
        *(
            request(str(at), grammar, generated_ids=whole.token_ids[:at], **sampling)
            for at in points
        )
    )
    for at in points:
        assert answers[str(at)].token_ids == whole.token_ids[at:]
        assert answers[str(at)].text == "".join(whole.deltas[at:])


def test_an_answer_that_had_ended_is_not_gone_on_with(
    make_engine: MakeEngine, compiler: GrammarCompiler
) -> None:
    """Its journal holds the end-of-turn token."""
    grammar = compiler.compile('{"const":1}')
    whole = make_engine().run_one(request("whole", grammar))
    answer = make_engine().run_one(request("a", grammar, generated_ids=whole.token_ids))
    assert (answer.token_ids, answer.finish_reason) == ([], FinishReason.STOP)


def test_max_tokens_cuts_an_answer(make_engine: MakeEngine, compiler: GrammarCompiler) -> None:
    """As the OpenAI API does: the reason says that the JSON is not whole."""
    schema = {"type": "string", "minLength": 50}
    grammar = compiler.compile(json.dumps(schema))
    answer = make_engine().run_one(request("a", grammar, max_tokens=4))
    assert (answer.finish_reason, len(answer.token_ids)) == (FinishReason.LENGTH, 4)
    assert answer.text.startswith('"')


@pytest.mark.parametrize("schema", [NUMBER, {"type": "object"}], ids=["may go on", "is whole"])
def test_ignore_eos_does_not_hold_for_them(
    schema: dict[str, Any], make_engine: MakeEngine, compiler: GrammarCompiler
) -> None:
    """Behind a whole answer there is nothing that could go on."""
    grammar = compiler.compile(json.dumps(schema))
    biased = {EOS_ID: 100.0, 95: 90.0}
    answer = make_engine().run_one(request("a", grammar, ignore_eos=True, logit_bias=biased))
    assert answer.finish_reason is FinishReason.STOP
    assert is_valid(answer.text, schema)


def test_stop_strings_and_stop_ids_hold_too(
    make_engine: MakeEngine, compiler: GrammarCompiler
) -> None:
    """They cut the JSON, as the client asked."""
    grammar = compiler.compile('{"const":"abcdef"}')
    answer = make_engine().run_one(request("a", grammar, stop=("cd",)))
    assert (answer.text, answer.finish_reason) == ('"ab', FinishReason.STOP)


def test_tokens_that_do_not_fit_the_grammar_fail_their_generation_only(
    make_engine: MakeEngine, compiler: GrammarCompiler
) -> None:
    """A journal that another version wrote: the error says so, the neighbour is not touched."""
    grammar = compiler.compile('{"const":"abcdef"}')
    run = make_engine()
    alone = run.run_one(request("alone", grammar)).token_ids
    answers = run.run(request("bad", grammar, generated_ids=[90]), request("good", grammar))
    error = answers["bad"].error
    assert error is not None
    assert (error.code, answers["bad"].token_ids) == (EngineErrorCode.INTERNAL_ERROR, [])
    assert answers["good"].token_ids == alone
