"""KV blocks that are damaged though nothing about them says so: right names, ids and sizes, and NaN
in the data. Whoever reuses them computes again, and answers as if they had never been.
"""

import struct
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from headrace.models import core
from headrace.models.loading import LoadedModel
from headrace.models.prefix import block_hashes
from headrace.models.request import (
    EngineErrorCode,
    EngineRequest,
    FinishReason,
    KVBlock,
    SamplingParams,
)
from tests.unit.models.engine_run import WAIT_S, EngineRun, Generate, MakeEngine, MakeRunner
from tests.unit.models.runners import (
    POISON_ID,
    CountingRunner,
    NotANumberRunner,
    StepwiseRunner,
)

NUM_TOKENS = 20
PROMPT = [3 + 11 * i % 450 for i in range(200)]


def request(
    key: str, prompt_ids: list[int], *, kv_blocks: Sequence[KVBlock] = (), **sampling: float
) -> EngineRequest:
    params = SamplingParams(ignore_eos=True, **{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return EngineRequest(
        key, prompt_ids, max_tokens=NUM_TOKENS, sampling=params, kv_blocks=kv_blocks
    )


def damaged_blocks(run: EngineRun, prompt_ids: Sequence[int], damaged: int) -> list[KVBlock]:
    """The prompt's blocks as the engine has computed them, but with NaN in one."""
    names = block_hashes(prompt_ids, salt=run.engine.salt("default"))
    found = run.engine.export_blocks(names).result(timeout=WAIT_S)
    blocks = [block for block in found if block is not None]
    assert len(blocks) == len(names)
    bad = blocks[damaged]
    not_a_number = struct.pack("f", float("nan"))
    data = not_a_number * (len(bad.data) // len(not_a_number))
    blocks[damaged] = KVBlock(bad.hash, bad.token_ids, data)
    return blocks


@pytest.mark.parametrize("damaged", [0, 3, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_damaged_blocks_from_elsewhere_are_computed_again(
    damaged: int, temperature: float, make_engine: MakeEngine
) -> None:
    """Not an error, and not a lasting one: the cache has the right blocks afterwards."""
    source = make_engine()
    expected = source.run_one(request("a", PROMPT, temperature=temperature)).token_ids
    blocks = damaged_blocks(source, PROMPT, damaged)
    run = make_engine()
    answer = run.run_one(request("a", PROMPT, temperature=temperature, kv_blocks=blocks))
    assert (answer.error, answer.token_ids) == (None, expected)
    assert (answer.cached_tokens, answer.fetched_tokens) == (0, 0)
    after = run.run_one(request("b", PROMPT, temperature=temperature))
    assert (after.token_ids, after.cached_tokens) == (expected, 192)
    assert run.engine.kv_usage == 0.0


def test_those_who_shared_the_damage_answer_too(
    make_engine: MakeEngine, reference_greedy: Generate
) -> None:
    """Several rows with one damaged prefix, one without, in one batch and a small pool."""
    source = make_engine()
    source.run_one(request("a", PROMPT))
    blocks = damaged_blocks(source, PROMPT, 2)
    prompts = [PROMPT, PROMPT[:150], [*PROMPT[:100], 7, 8, 9], PROMPT[5:90]]
    run = make_engine(num_blocks=16, started=False)
    for index, prompt_ids in enumerate(prompts):
        run.add(request(str(index), prompt_ids, kv_blocks=blocks if index == 0 else ()))
    run.engine.start()
    answers = run.finish()
    assert [answers[str(index)].error for index in range(4)] == [None] * 4
    expected = [reference_greedy(prompt_ids, NUM_TOKENS) for prompt_ids in prompts]
    assert expected == [answers[str(index)].token_ids for index in range(4)]


def test_a_row_that_is_not_finite_by_itself_fails_after_one_more_try(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """Its shared prefix was not the reason."""
    counting = CountingRunner(make_runner(tiny_model))
    run = make_engine(runner=NotANumberRunner(counting))
    healthy = run.run_one(request("first", PROMPT[:100]))
    num_before = sum(counting.num_tokens)
    failure = run.run_one(request("bad", [*PROMPT[:100], POISON_ID])).error
    assert failure is not None
    assert failure.code is EngineErrorCode.NUMERICAL_ERROR
    assert sum(counting.num_tokens) - num_before == (101 - 96) + 101
    again = run.run_one(request("second", PROMPT[:100]))
    assert (again.token_ids, again.finish_reason) == (healthy.token_ids, FinishReason.LENGTH)
    assert run.engine.kv_usage == 0.0


def test_one_that_expires_takes_no_shared_block_with_it(
    make_engine: MakeEngine,
    make_runner: MakeRunner,
    tiny_model: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was admitted, over a cached prefix, and no step had room for it: that prefix left the
    cache.
    """
    clock = SimpleNamespace(now_s=0.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr(core, "time", clock)
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner, started=False, max_batch_tokens=32)
    run.add(request("prefix", PROMPT[:70]))
    num_steps = 3 + NUM_TOKENS - 1
    for _ in range(num_steps):
        runner.allow()
    run.engine.start()
    run.finish("prefix")
    assert run.engine.cached_tokens(PROMPT, "default") == 64
    for _ in range(num_steps):
        runner.batches.get(timeout=WAIT_S)
    late = request("late", PROMPT)
    late.deadline_s = 10.0
    run.add(request("long", PROMPT[100:]))
    assert runner.batches.get(timeout=WAIT_S) == 1
    run.add(request("short", PROMPT[100:140][::-1]), late)
    runner.allow()
    assert runner.batches.get(timeout=WAIT_S) == 2
    clock.now_s = 11.0
    for _ in range(2):  # the step that runs, and that which ends with the outputs
        runner.allow()
    failure = run.finish("late")["late"].error
    assert failure is not None
    assert failure.code is EngineErrorCode.EXPIRED
    assert run.engine.cached_tokens(PROMPT, "default") == 64
    for _ in range(100):
        runner.allow()
