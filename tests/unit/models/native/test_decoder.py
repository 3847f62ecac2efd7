"""The native decoder against transformers, and the independence of its rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.models.batch import RowInput, StepLogits, Wanted
from headrace.models.native.build import FLAGS, NativeUnavailableError, build_library
from headrace.models.native.convert import convert
from headrace.models.native.library import Library, Weight
from headrace.models.native.runner import NativeRunner
from tests.unit.models.native.decoders import (
    ARCHITECTURES,
    MAX_ROWS,
    MAX_TOKENS,
    NUM_BLOCKS,
    VOCAB,
    blocks_of,
    ids_of,
    make_model,
    make_runner,
    run_one,
)

DTYPES = [torch.float32, torch.bfloat16]

RunnerOf = Callable[[torch.dtype], NativeRunner]


@pytest.fixture(scope="module")
def runner_of() -> RunnerOf:
    """A runner of the Llama for each dtype; made once."""
    made: dict[torch.dtype, NativeRunner] = {}

    def runner(dtype: torch.dtype) -> NativeRunner:
        if dtype not in made:
            made[dtype] = make_runner(make_model(dtype))
        return made[dtype]

    return runner


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_ids_are_those_of_transformers(name: str) -> None:
    model = make_model(**ARCHITECTURES[name])
    runner = make_runner(model)
    prompt = ids_of(1, 70)
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    found: list[int] = []
    start, chunk = 0, prompt
    while len(found) < 40:
        step = runner.run([RowInput(blocks_of(0), start, chunk, Wanted.GREEDY)])
        start += len(chunk)
        found += step.greedy_ids
        chunk = step.greedy_ids
    assert found == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bfloat16_logits_are_near_those_of_transformers(name: str) -> None:
    """`convert` itself compares them, and refuses."""
    make_runner(make_model(torch.bfloat16, **ARCHITECTURES[name]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_row_does_not_depend_on_chunks_or_neighbours(
    dtype: torch.dtype, runner_of: RunnerOf, data: st.DataObject
) -> None:
    """Bit by bit: prefilled at once and alone, or in any pieces beside any other rows."""
    runner = runner_of(dtype)
    ids = ids_of(data.draw(st.integers(0, 5)), data.draw(st.integers(1, 600)))
    alone = run_one(runner, ids)
    borders = data.draw(st.sets(st.integers(1, len(ids)), max_size=6)) | {len(ids)}
    start, logits = 0, alone
    for end in sorted(borders):
        rows = [RowInput(blocks_of(1), start, ids[start:end], Wanted.LOGITS)]
        room = MAX_TOKENS - (end - start)
        for place in range(2, 2 + data.draw(st.integers(0, 2))):
            count = data.draw(st.integers(1, max(1, room // 4)))
            room -= count
            if room < 0:
                break
            wanted = data.draw(st.sampled_from(Wanted))
            rows.append(RowInput(blocks_of(place), 0, ids_of(place, count), wanted))
        at = data.draw(st.integers(0, len(rows) - 1))
        rows[0], rows[at] = rows[at], rows[0]
        before = sum(row.wanted is Wanted.LOGITS for row in rows[:at])
        logits = runner.run(rows).logits[before].clone()
        start = end
    assert torch.equal(logits, alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_one_by_one_is_prefilling(dtype: torch.dtype, runner_of: RunnerOf) -> None:
    """Across two spans of keys: what a resumed generation gets is what it would have got."""
    runner = runner_of(dtype)
    ids = ids_of(3, 530)
    alone = run_one(runner, ids)
    for position, token_id in enumerate(ids):
        logits = runner.run([RowInput(blocks_of(1), position, [token_id], Wanted.LOGITS)]).logits
    assert torch.equal(logits[0], alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_threads_changes_nothing(dtype: torch.dtype, runner_of: RunnerOf) -> None:
    ids = ids_of(4, 200)
    single = make_runner(make_model(dtype), num_threads=1)
    assert torch.equal(run_one(single, ids), run_one(runner_of(dtype), ids))
    many = make_runner(make_model(dtype), num_threads=5)
    assert torch.equal(run_one(many, ids), run_one(runner_of(dtype), ids))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_travel(dtype: torch.dtype, runner_of: RunnerOf) -> None:
    """To other places of another decoder's pool."""
    first, second = runner_of(dtype), make_runner(make_model(dtype))
    ids = ids_of(5, 100)
    alone = run_one(first, ids)
    for mine, other in zip(blocks_of(0)[:3], blocks_of(2)[:3], strict=True):
        second.write_block(other, memoryview(first.read_block(mine)))
    row = RowInput(blocks_of(2), 96, ids[96:], Wanted.LOGITS)
    assert torch.equal(second.run([row]).logits[0], alone)
    assert first.kv_format == second.kv_format


def test_greedy_takes_the_lowest_of_equals() -> None:
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight[100:200] = model.lm_head.weight[:100]
    runner = make_runner(model)
    seen = set()
    for seed in range(100):
        step = runner.run([RowInput(blocks_of(0), 0, ids_of(seed, 3), Wanted.LOGITS)])
        assert step.greedy_ids == [int(step.logits[0].argmax())]
        seen.update(step.greedy_ids)
    assert any(token_id < 100 for token_id in seen)
    assert not any(100 <= token_id < 200 for token_id in seen)


def test_what_rows_want(runner_of: RunnerOf) -> None:
    runner = runner_of(torch.float32)
    wants = [Wanted.GREEDY, Wanted.NOTHING, Wanted.LOGITS, Wanted.GREEDY, Wanted.LOGITS]
    rows = [RowInput(blocks_of(i, 32), 0, ids_of(i, 9), want) for i, want in enumerate(wants)]
    step = runner.run(rows)
    logits = step.logits.clone()
    alone = [run_one(runner, ids_of(i, 9)) for i in range(5)]
    assert step.greedy_ids == [int(alone[i].argmax()) for i in (0, 2, 3, 4)]
    assert step.is_finite == [True] * 4
    assert torch.equal(logits, torch.stack([alone[2], alone[4]]))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_poisoned_row_poisons_nobody(dtype: torch.dtype, poison: float) -> None:
    """Neither its neighbours, nor who gets its blocks afterwards."""
    model = make_model(dtype)
    runner = make_runner(model)
    sick_id = 202
    healthy, rest = ([i % sick_id for i in ids_of(seed, 40)] for seed in (1, 2))
    expected, expected_rest = run_one(runner, healthy), run_one(runner, rest)
    with torch.no_grad():
        model.model.embed_tokens.weight[sick_id] = poison
    runner._decoder.set_weight(Weight.EMBEDDING, model.model.embed_tokens.weight)
    step = runner.run(
        [
            RowInput(blocks_of(0), 0, healthy, Wanted.LOGITS),
            RowInput(blocks_of(1), 0, [1, sick_id, *ids_of(3, 50)], Wanted.GREEDY),
        ]
    )
    assert step.is_finite == [True, False]
    assert torch.equal(step.logits[0], expected)
    assert torch.equal(run_one(runner, rest, place=1), expected_rest)


def test_steps_out_of_bounds_are_refused(runner_of: RunnerOf) -> None:
    runner = runner_of(torch.float32)
    blocks = blocks_of(0)
    bad = [
        RowInput(blocks, 0, [VOCAB], Wanted.GREEDY),
        RowInput(blocks, 0, [-1], Wanted.GREEDY),
        RowInput(blocks, 0, [], Wanted.GREEDY),
        RowInput(blocks[:1], 30, [1, 2, 3], Wanted.GREEDY),
        RowInput([NUM_BLOCKS], 0, [1], Wanted.GREEDY),
        RowInput([-1], 0, [1], Wanted.GREEDY),
        RowInput(list(range(80)), 0, [1] * (MAX_TOKENS + 1), Wanted.GREEDY),
        RowInput(list(range(80)), 2048, [1], Wanted.GREEDY),
    ]
    for row in bad:
        with pytest.raises(ValueError, match=r"must be|no room|too many"):
            runner.run([row])
    with pytest.raises(ValueError, match="too many"):
        runner.run([RowInput(blocks, 0, [1], Wanted.GREEDY)] * (MAX_ROWS + 1))
    with pytest.raises(ValueError, match="bytes"):
        runner.write_block(0, b"short")
    for block_id in (-1, NUM_BLOCKS):
        with pytest.raises(ValueError, match="no block"):
            runner.read_block(block_id)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt_neox", "head_dim": None, "num_key_value_heads": 6}, "type gpt_neox"),
        ({"head_dim": 16}, "sizes"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding"),
        ({"attention_bias": True}, "biases"),
    ],
    ids=str,
)
def test_other_models_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NativeUnavailableError, match=reason):
        convert(make_model(**changes), 2048, num_threads=1)


def test_a_wrong_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: a scale that the conversion forgets."""
    model = make_model()
    for layer in model.model.layers:
        layer.self_attn.forward = _scaled(layer.self_attn.forward)
    with pytest.raises(NativeUnavailableError, match="differ from those of transformers"):
        convert(model, 2048, num_threads=1)


def _scaled(forward: Callable[..., Any]) -> Callable[..., Any]:
    def scaled(*args: Any, **kwargs: Any) -> Any:
        output, *rest = forward(*args, **kwargs)
        return (output * 1.1, *rest)

    return scaled


def _variants() -> list[tuple[str, ...]]:
    """Other instruction sets that this processor has, too; and a compiler that looks at the code in
    another way, which once lost the configuration of the tiles: the process was killed.
    """
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        has = set(info.read().split())
    found: list[tuple[str, ...]] = [()]
    if "amx_bf16" in has:
        found += [("-O2",), ("-mno-amx-bf16",)]
    if {"avx2", "fma"} <= has:
        found.append(("-mno-amx-bf16", "-mno-avx512f"))
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("without", _variants(), ids=str)
def test_every_instruction_set_is_exact(without: tuple[str, ...], dtype: torch.dtype) -> None:
    """Near transformers (`convert` compares), and the same in any chunks."""
    library = Library(build_library((*FLAGS, *without)))
    runner = make_runner(make_model(dtype), library=library)
    ids = ids_of(6, 90)
    alone = run_one(runner, ids)
    runner.run([RowInput(blocks_of(1), 0, ids[:33], Wanted.NOTHING)])
    runner.run([RowInput(blocks_of(1), 33, ids[33:89], Wanted.NOTHING)])
    rows = [
        RowInput(blocks_of(2), 0, ids_of(1, 20), Wanted.GREEDY),
        RowInput(blocks_of(1), 89, ids[89:], Wanted.LOGITS),
    ]
    step: StepLogits = runner.run(rows)
    assert torch.equal(step.logits[0], alone)
