"""The engine's KV blocks: small pools, preemption, the prefix cache, blocks that travel between
engines. None of it changes a token.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from headrace.models.batch import BLOCK_TOKENS
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
    PoisonedRunner,
    StepwiseRunner,
)

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
SAMPLED = SamplingParams(seed=5, temperature=0.8, top_p=0.95, ignore_eos=True)
NUM_TOKENS = 40
BASE = [3 + 11 * i % 450 for i in range(400)]


def prompts(*lengths: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(3, 500) for _ in range(length)] for length in lengths]


PROMPTS = prompts(30, 70, 1, 120, 31, 64, 33, 95)


def request(key: str, prompt_ids: list[int], **options: Any) -> EngineRequest:
    settings = {"max_tokens": NUM_TOKENS, "sampling": GREEDY, **options}
    return EngineRequest(key, prompt_ids, **settings)


def exported(future: "Future[list[KVBlock | None]]") -> list[KVBlock]:
    blocks = future.result(timeout=WAIT_S)
    there = [block for block in blocks if block is not None]
    assert len(there) == len(blocks)
    return there


def names_of(run: EngineRun, token_ids: Sequence[int], tenant: str = "default") -> list[bytes]:
    return block_hashes(token_ids, salt=run.engine.salt(tenant))


@pytest.mark.parametrize("num_blocks", [5, 6, 8, 13])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_small_pools_change_no_token(
    num_blocks: int, *, prefix_caching: bool, make_engine: MakeEngine, reference_greedy: Generate
) -> None:
    """Rows that are preempted compute their tokens again and go on as if nothing had been."""
    run = make_engine(num_blocks=num_blocks, prefix_caching=prefix_caching)
    answers = run.run(*(request(str(i), ids) for i, ids in enumerate(PROMPTS)))
    expected = [reference_greedy(ids, NUM_TOKENS) for ids in PROMPTS]
    assert expected == [answers[str(i)].token_ids for i in range(len(PROMPTS))]
    assert run.engine.counters.num_preemptions > 0
    assert (run.engine.counters.num_evictions > 0) == prefix_caching
    assert run.engine.kv_usage == 0.0


def test_preempted_samples_are_the_same(make_engine: MakeEngine) -> None:
    """Seed and position decide, not the step in which a token is drawn."""
    requests = [request(str(i), ids, sampling=SAMPLED) for i, ids in enumerate(PROMPTS)]
    roomy, tight = make_engine(), make_engine(num_blocks=6)
    expected = {one.key: roomy.run_one(one).token_ids for one in requests}
    answers = tight.run(*requests)
    assert expected == {key: answer.token_ids for key, answer in answers.items()}
    assert tight.engine.counters.num_preemptions > 0


def test_priority_decides_who_is_preempted(make_engine: MakeEngine) -> None:
    """The urgent one goes through, though it came last and there is not enough for both."""
    run = make_engine(num_blocks=6, started=False)
    run.add(request("calm", PROMPTS[1], max_tokens=80))
    run.add(request("urgent", PROMPTS[5], max_tokens=80, priority=1))
    run.engine.start()
    assert run.finish("urgent")["urgent"].finish_reason is FinishReason.LENGTH
    assert run.answers["calm"].finish_reason is None
    assert run.finish()["calm"].finish_reason is FinishReason.LENGTH
    assert run.engine.counters.num_preemptions > 0


@pytest.mark.parametrize("length", [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 200])
def test_a_prompt_seen_before_is_not_computed_again(
    length: int, make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """Full blocks are shared, one token at least is computed, and the answer is the same."""
    runner = CountingRunner(make_runner(tiny_model))
    run = make_engine(runner=runner)
    first = run.run_one(request("first", BASE[:length]))
    num_before = sum(runner.num_tokens)
    second = run.run_one(request("second", BASE[:length]))
    num_shared = (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert first.token_ids == second.token_ids
    assert (first.cached_tokens, second.cached_tokens) == (0, num_shared)
    assert sum(runner.num_tokens) - num_before == num_before - num_shared
    counters = run.engine.counters
    assert counters.prefix_queried_tokens == 2 * length
    assert (counters.prefix_local_hit_tokens, counters.prefix_fetched_hit_tokens) == (num_shared, 0)


def test_the_next_turn_finds_prompt_and_answer(
    make_engine: MakeEngine, reference_greedy: Generate
) -> None:
    """Blocks that were filled while decoding are shared too."""
    run = make_engine()
    answer = run.run_one(request("turn 1", BASE[:50], max_tokens=60)).token_ids
    prompt_ids = [*BASE[:50], *answer, *BASE[60:75]]
    second = run.run_one(request("turn 2", prompt_ids))
    assert second.cached_tokens == 96  # of 109 computed ones
    assert second.token_ids == reference_greedy(prompt_ids, NUM_TOKENS)


def test_branches_of_a_conversation_share_what_is_equal(
    make_engine: MakeEngine, reference_greedy: Generate
) -> None:
    """Common prefixes of many lengths at once, in one batch."""
    branches = [[*BASE[: 40 * i], *prompts(20)[0][i:]] for i in range(1, 8)]
    run = make_engine()
    run.run_one(request("root", BASE[:300]))
    answers = run.run(*(request(str(i), ids) for i, ids in enumerate(branches)))
    for index, ids in enumerate(branches):
        assert answers[str(index)].token_ids == reference_greedy(ids, NUM_TOKENS)
        assert answers[str(index)].cached_tokens == 40 * (index + 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_cached_tokens_can_be_asked(make_engine: MakeEngine) -> None:
    """For each tenant its own; asking takes nothing."""
    run = make_engine()
    run.run_one(request("a", BASE[:100], tenant="one"))
    found = [
        run.engine.cached_tokens(BASE[:100], "one"),
        run.engine.cached_tokens(BASE[:300], "one"),
        run.engine.cached_tokens(BASE[1:100], "one"),
        run.engine.cached_tokens(BASE[:100], "two"),
    ]
    assert found == [96, 96, 0, 0]
    assert run.engine.kv_usage == 0.0


def test_tenants_share_nothing(make_engine: MakeEngine) -> None:
    """Else response times would tell one what another has asked."""
    run = make_engine()
    first = run.run_one(request("a", BASE[:100], tenant="one"))
    other = run.run_one(request("b", BASE[:100], tenant="two"))
    assert (first.token_ids, first.cached_tokens) == (other.token_ids, other.cached_tokens)


def test_without_prefix_caching_all_is_computed(make_engine: MakeEngine) -> None:
    """For measurements."""
    run = make_engine(prefix_caching=False)
    run.run_one(request("a", BASE[:100]))
    assert run.run_one(request("b", BASE[:100])).cached_tokens == 0
    assert run.engine.cached_tokens(BASE[:100], "default") == 0


def test_blocks_travel_between_engines(
    make_engine: MakeEngine,
    make_runner: MakeRunner,
    tiny_model: LoadedModel,
    reference_greedy: Generate,
) -> None:
    """What one has computed, another goes on with."""
    source = make_engine()
    source.run_one(request("a", BASE[:200]))
    blocks = exported(source.engine.export_blocks(names_of(source, BASE[:200])))
    assert [block.token_ids for block in blocks][1] == tuple(BASE[32:64])
    runner = CountingRunner(make_runner(tiny_model))
    target = make_engine(runner=runner)
    answer = target.run_one(request("b", BASE[:250], kv_blocks=blocks))
    assert answer.token_ids == reference_greedy(BASE[:250], NUM_TOKENS)
    assert (answer.cached_tokens, answer.fetched_tokens) == (192, 192)
    assert runner.num_tokens[0] <= 250 - 192
    again = target.run_one(request("c", BASE[:250]))
    assert (again.token_ids, again.fetched_tokens) == (answer.token_ids, 0)
    assert target.engine.counters.prefix_fetched_hit_tokens == 192


def test_a_resumed_generation_takes_its_own_blocks_along(make_engine: MakeEngine) -> None:
    """Also those with tokens that it has generated; these are no prompt tokens."""
    source = make_engine()
    whole = source.run_one(request("a", BASE[:50], max_tokens=80)).token_ids
    known = [*BASE[:50], *whole[:60]]
    blocks = exported(source.engine.export_blocks(names_of(source, known)))
    resumed = make_engine().run_one(
        request("a", BASE[:50], max_tokens=80, generated_ids=whole[:60], kv_blocks=blocks)
    )
    assert resumed.token_ids == whole[60:]
    assert (resumed.cached_tokens, resumed.fetched_tokens) == (50, 50)


def spoil_size(block: KVBlock) -> KVBlock:
    return dataclasses.replace(block, data=block.data[:-1])


def spoil_tokens(block: KVBlock) -> KVBlock:
    return dataclasses.replace(block, token_ids=(7, *block.token_ids[1:]))


def spoil_name(block: KVBlock) -> KVBlock:
    return dataclasses.replace(block, hash=bytes(16))


@pytest.mark.parametrize("spoil", [spoil_size, spoil_tokens, spoil_name])
def test_a_block_in_doubt_is_a_miss(
    spoil: Callable[[KVBlock], KVBlock], make_engine: MakeEngine
) -> None:
    """Blocks behind it are not used either; the answer is the same."""
    source = make_engine()
    expected = source.run_one(request("a", BASE[:200])).token_ids
    blocks = exported(source.engine.export_blocks(names_of(source, BASE[:200])))
    blocks[2] = spoil(blocks[2])
    answer = make_engine().run_one(request("a", BASE[:200], kv_blocks=blocks))
    assert (answer.token_ids, answer.fetched_tokens) == (expected, 64)


def test_another_tenants_blocks_are_a_miss(make_engine: MakeEngine) -> None:
    """Even if somebody hands them in."""
    source = make_engine()
    source.run_one(request("a", BASE[:200], tenant="one"))
    blocks = exported(source.engine.export_blocks(names_of(source, BASE[:200], "one")))
    answer = make_engine().run_one(request("a", BASE[:200], tenant="two", kv_blocks=blocks))
    assert answer.fetched_tokens == 0


def test_exports_say_what_is_gone(make_engine: MakeEngine) -> None:
    """None in the place of each block that the pool does not have."""
    run = make_engine()
    run.run_one(request("a", BASE[:70], max_tokens=1))
    names = names_of(run, BASE[:70])
    blocks = run.engine.export_blocks([names[1], bytes(16), names[0]]).result(timeout=WAIT_S)
    assert [block and block.hash for block in blocks] == [names[1], None, names[0]]


def test_exports_between_steps_and_after_the_end(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """While it runs they wait for the step boundary; those that are asked for during the stop, and
    after it, are made too.
    """
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner)
    run.add(request("a", BASE[:40]))
    runner.batches.get(timeout=WAIT_S)
    names = names_of(run, BASE[:40])
    waiting = run.engine.export_blocks(names)
    cancelled = run.engine.export_blocks(names)
    assert cancelled.cancel()
    assert not waiting.done()
    runner.allow()
    runner.batches.get(timeout=WAIT_S)
    block = exported(waiting)[0]
    late = run.engine.export_blocks(names)
    runner.allow()
    run.engine.stop()
    assert exported(late)[0] == block
    assert exported(run.engine.export_blocks(names))[0] == block


def test_an_engine_that_never_ran_exports_nothing(make_engine: MakeEngine) -> None:
    """It answers when it is stopped."""
    run = make_engine(started=False)
    asked = run.engine.export_blocks([bytes(16)])
    run.engine.stop()
    assert asked.result(timeout=WAIT_S) == [None]
    assert run.engine.export_blocks([bytes(16)]).result(timeout=WAIT_S) == [None]


def test_what_lies_in_unused_memory_leaks_nowhere(
    make_engine: MakeEngine,
    make_runner: MakeRunner,
    tiny_model: LoadedModel,
    reference_greedy: Generate,
) -> None:
    """NaN behind a row's last token and in free blocks; 0 * NaN would be NaN."""
    runner = make_runner(tiny_model, num_blocks=16)
    for block_id in range(16):
        runner.write_block(block_id, b"\xff" * runner.kv_format.block_bytes)
    run = make_engine(runner=runner)
    answers = run.run(*(request(str(i), ids) for i, ids in enumerate(PROMPTS)))
    expected = [reference_greedy(ids, NUM_TOKENS) for ids in PROMPTS]
    assert expected == [answers[str(i)].token_ids for i in range(len(PROMPTS))]


@pytest.mark.parametrize("kind", [PoisonedRunner, NotANumberRunner])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_failed_rows_blocks_are_free_and_forgotten(
    kind: type[PoisonedRunner | NotANumberRunner],
    sampling: SamplingParams,
    make_engine: MakeEngine,
    make_runner: MakeRunner,
    tiny_model: LoadedModel,
) -> None:
    """The pool is back at its baseline, the neighbour goes on, and nobody reuses a bad prefix."""
    inside = make_runner(tiny_model)
    error = RuntimeError("no shape fits")
    runner = PoisonedRunner(inside, error) if kind is PoisonedRunner else NotANumberRunner(inside)
    bad, good = [*BASE[:100], POISON_ID], [7, *BASE[:99]]
    run = make_engine(runner=runner)
    alone = run.run_one(request("alone", good, sampling=sampling)).token_ids
    answers = run.run(
        request("bad", bad, sampling=sampling), request("good", good, sampling=sampling)
    )
    failure = answers["bad"].error
    assert failure is not None
    assert failure.code is (
        EngineErrorCode.INTERNAL_ERROR
        if kind is PoisonedRunner
        else EngineErrorCode.NUMERICAL_ERROR
    )
    assert answers["good"].token_ids == alone
    assert run.engine.kv_usage == 0.0
    assert run.engine.cached_tokens(bad, "default") == 0
    assert run.engine.cached_tokens(good, "default") == 96


def test_only_sampled_rows_pay_for_logits(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """Greedy rows get their token from the runner."""
    runner = CountingRunner(make_runner(tiny_model))
    run = make_engine(runner=runner, started=False)
    penalised = dataclasses.replace(GREEDY, presence_penalty=0.5)
    for index, sampling in enumerate((GREEDY, SAMPLED, GREEDY, penalised)):
        run.add(request(str(index), BASE[:5], sampling=sampling, max_tokens=3))
    run.engine.start()
    run.finish()
    assert runner.num_logits == [2, 2, 2]


def test_mixed_lengths_equal_generate(make_engine: MakeEngine, reference_greedy: Generate) -> None:
    """Many requests of 1 to 440 tokens, some with common prefixes, in a pool for a few of them."""
    rng = random.Random(3)
    lengths = [rng.choice((1, 3, 30, 31, 32, 33, 100, 440)) for _ in range(30)]
    all_prompts = [
        BASE[:length] if rng.random() < 0.4 and length < 400 else prompts(length)[0]
        for length in lengths
    ]
    run = make_engine(num_blocks=24, max_batch_tokens=150)
    answers = run.run(
        *(request(str(i), ids, max_tokens=10 + i % 7) for i, ids in enumerate(all_prompts))
    )
    for index, ids in enumerate(all_prompts):
        assert answers[str(index)].token_ids == reference_greedy(ids, 10 + index % 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_survives_reading_and_writing(
    dtype: torch.dtype, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """Bit by bit; a block of another size is refused."""
    loaded = dataclasses.replace(
        tiny_model, layout=dataclasses.replace(tiny_model.layout, dtype=dtype)
    )
    runner = make_runner(loaded, num_blocks=3)
    data = random.Random(0).randbytes(runner.kv_format.block_bytes)
    runner.write_block(1, data)
    assert runner.read_block(1) == data
    assert set(runner.read_block(0) + runner.read_block(2)) == {0}
    with pytest.raises(ValueError, match="bytes"):
        runner.write_block(1, data[1:])
