"""The engine on a real, tiny model: the oracle's tokens in any batch, and every way to end."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from headrace.models.engine import EngineStoppedError
from headrace.models.loading import LoadedModel
from headrace.models.request import (
    EngineErrorCode,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SamplingParams,
)
from tests.unit.models.engine_run import WAIT_S, Generate, MakeEngine, MakeRunner
from tests.unit.models.runners import POISON_ID, NotANumberRunner, PoisonedRunner, StepwiseRunner

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(
    seed=-7,
    temperature=0.9,
    top_p=0.95,
    top_k=50,
    min_p=0.001,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
)
NUM_TOKENS = 24
EOS_ID = 2


def random_prompts(*lengths: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, 500) for _ in range(length)] for length in lengths]


PROMPTS = random_prompts(2, 40, 1, 100, 17, 64, 33, 9, 25)


def request(
    key: str,
    prompt_ids: list[int],
    *,
    sampling: SamplingParams = GREEDY,
    max_tokens: int = NUM_TOKENS,
    generated_ids: Sequence[int] = (),
    priority: int = 0,
    deadline_s: float | None = None,
) -> EngineRequest:
    return EngineRequest(
        key,
        prompt_ids,
        max_tokens,
        generated_ids=list(generated_ids),
        sampling=sampling,
        priority=priority,
        deadline_s=deadline_s,
    )


@pytest.mark.parametrize("prompt_ids", PROMPTS, ids=len)
def test_greedy_equals_generate(
    prompt_ids: list[int], make_engine: MakeEngine, reference_greedy: Generate
) -> None:
    """One request alone gives the tokens that transformers' own generate gives."""
    answer = make_engine().run_one(request("a", prompt_ids))
    assert reference_greedy(prompt_ids, NUM_TOKENS) == answer.token_ids
    assert answer.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_batch_tokens", [8, 13, 64, 4096])
def test_greedy_equals_generate_in_any_batch(
    max_batch_tokens: int, make_engine: MakeEngine, reference_greedy: Generate
) -> None:
    """Prompts of all lengths at once, prefilled in chunks beside decoding rows, change no token."""
    run = make_engine(max_batch_tokens=max_batch_tokens)
    answers = run.run(*(request(str(i), ids) for i, ids in enumerate(PROMPTS)))
    expected = [reference_greedy(ids, NUM_TOKENS) for ids in PROMPTS]
    assert expected == [answers[str(i)].token_ids for i in range(len(PROMPTS))]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_resumed_at_every_point_equals_undisturbed(
    sampling: SamplingParams, make_engine: MakeEngine
) -> None:
    """A generation taken up after n tokens, in a batch, goes on with the same tokens and text."""
    run = make_engine()
    whole = run.run_one(request("whole", PROMPTS[1], sampling=sampling))
    resumed = [
        request(str(n), PROMPTS[1], sampling=sampling, generated_ids=whole.token_ids[:n])
        for n in range(NUM_TOKENS)
    ]
    answers = run.run(*resumed)
    for n in range(NUM_TOKENS):
        assert whole.token_ids[n:] == answers[str(n)].token_ids
        assert "".join(whole.deltas[n:]) == answers[str(n)].text


def test_sampled_is_the_same_alone_and_in_a_batch(make_engine: MakeEngine) -> None:
    """Which rows run beside a sampled one does not change its tokens."""
    run = make_engine(max_batch_tokens=32)
    sampled = [request(str(i), ids, sampling=SAMPLED) for i, ids in enumerate(PROMPTS)]
    together = {key: answer.token_ids for key, answer in run.run(*sampled).items()}
    alone = {one.key: run.run_one(one).token_ids for one in sampled}
    assert alone == together


def test_text_is_the_decoding_of_the_tokens(
    make_engine: MakeEngine, tiny_model: LoadedModel
) -> None:
    """Joined deltas equal the tokenizer's decoding."""
    answer = make_engine().run_one(request("a", PROMPTS[3], max_tokens=100))
    expected = tiny_model.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    assert expected == answer.text


def test_end_token_ends_and_counts(make_engine: MakeEngine) -> None:
    """The end token is in the token ids and not in the text."""
    to_the_end = SamplingParams(temperature=0, logit_bias={EOS_ID: 100.0})
    answer = make_engine().run_one(request("a", PROMPTS[0], sampling=to_the_end))
    assert (
        answer.token_ids,
        answer.text,
        answer.finish_reason,
    ) == ([EOS_ID], "", FinishReason.STOP)


def test_ignore_eos_goes_on(make_engine: MakeEngine) -> None:
    """With `ignore_eos` only the length ends it."""
    ignoring = SamplingParams(temperature=0, logit_bias={EOS_ID: 100.0}, ignore_eos=True)
    answer = make_engine().run_one(request("a", PROMPTS[0], sampling=ignoring, max_tokens=3))
    assert (answer.token_ids, answer.finish_reason) == ([EOS_ID] * 3, FinishReason.LENGTH)


def test_stop_token_id_ends(make_engine: MakeEngine) -> None:
    """A stop token of the request ends it like an end token."""
    run = make_engine()
    whole = run.run_one(request("whole", PROMPTS[1]))
    stop_id = whole.token_ids[5]
    first = whole.token_ids.index(stop_id)
    stopping = SamplingParams(temperature=0, stop_token_ids=frozenset({stop_id}))
    answer = run.run_one(request("a", PROMPTS[1], sampling=stopping))
    assert whole.token_ids[: first + 1] == answer.token_ids
    assert answer.finish_reason is FinishReason.STOP


def test_stop_string_cuts_the_text(make_engine: MakeEngine) -> None:
    """The text ends right before the stop string, also after a resumption."""
    run = make_engine()
    whole = run.run_one(request("whole", PROMPTS[1]))
    stop = whole.text[20:24]
    stopping = SamplingParams(temperature=0, stop=(stop,))
    answer = run.run_one(request("a", PROMPTS[1], sampling=stopping))
    assert whole.text[: whole.text.index(stop)] == answer.text
    assert answer.finish_reason is FinishReason.STOP
    half = len(answer.token_ids) // 2
    rest = run.run_one(
        request("b", PROMPTS[1], sampling=stopping, generated_ids=answer.token_ids[:half])
    )
    assert answer.text == "".join(answer.deltas[:half]) + rest.text


def test_a_stop_string_in_the_prompt_does_not_fire(
    make_engine: MakeEngine, tiny_model: LoadedModel
) -> None:
    """Only generated text can match."""
    prompt_ids = tiny_model.tokenizer.encode("END of the river END")
    stopping = SamplingParams(temperature=0, stop=("END",))
    answer = make_engine().run_one(request("a", prompt_ids, sampling=stopping))
    assert answer.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("ending", ["eos", "length", "stop"])
def test_resuming_what_had_ended_finishes_at_once(ending: str, make_engine: MakeEngine) -> None:
    """Tokens that already end the generation give the same finish, without a new token."""
    run = make_engine()
    sampling = {
        "eos": SamplingParams(temperature=0, logit_bias={EOS_ID: 100.0}),
        "length": GREEDY,
        "stop": SamplingParams(
            temperature=0, stop=(run.run_one(request("w", PROMPTS[1])).text[9],)
        ),
    }[ending]
    whole = run.run_one(request("whole", PROMPTS[1], sampling=sampling))
    again = run.run_one(
        request("again", PROMPTS[1], sampling=sampling, generated_ids=whole.token_ids)
    )
    assert ([], whole.finish_reason) == (again.token_ids, again.finish_reason)


def test_the_window_ends_a_generation(make_engine: MakeEngine, tiny_model: LoadedModel) -> None:
    """Prompt and answer together never pass `max_model_len`."""
    prompt_ids = random_prompts(tiny_model.max_model_len - 4)[0]
    answer = make_engine().run_one(request("a", prompt_ids, max_tokens=100))
    assert (len(answer.token_ids), answer.finish_reason) == (4, FinishReason.LENGTH)


def test_cancel_running(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """A cancelled generation ends at the next step boundary; its neighbour does not notice."""
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner)
    run.add(request("a", PROMPTS[0]), request("b", PROMPTS[1], max_tokens=4))
    runner.allow()
    run.collect()
    runner.batches.get(timeout=WAIT_S)
    run.engine.cancel("a")
    for _ in range(8):
        runner.allow()
    answers = run.finish()
    assert answers["a"].finish_reason is FinishReason.CANCELLED
    assert len(answers["a"].token_ids) < NUM_TOKENS
    assert answers["b"].finish_reason is FinishReason.LENGTH


def test_cancel_waiting(make_engine: MakeEngine) -> None:
    """A generation that has not begun ends with no tokens; so does one added before the start."""
    run = make_engine(max_batch_size=1, started=False)
    run.add(request("a", PROMPTS[0]), request("b", PROMPTS[1]))
    run.engine.cancel("b")
    run.engine.cancel("unknown")
    run.engine.start()
    answers = run.finish()
    assert (answers["b"].token_ids, answers["b"].finish_reason) == ([], FinishReason.CANCELLED)
    assert answers["a"].finish_reason is FinishReason.LENGTH


def test_abort_is_silent_and_frees_the_key(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """After an abort nothing comes, not even what the step that runs gives; the key is free."""
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner)
    run.add(request("a", PROMPTS[0]))
    runner.batches.get(timeout=WAIT_S)
    run.engine.abort("a")
    run.add(request("a", PROMPTS[0], max_tokens=2))
    for _ in range(3):
        runner.allow()
    answer = run.finish()["a"]
    assert (len(answer.token_ids), answer.num_last) == (2, 1)
    assert run.outputs.empty()
    assert run.engine.kv_usage == 0.0


def test_first_step_of_an_idle_engine_is_a_batch(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """Requests that come one after the other within the window begin together."""
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner, max_batch_size=3, batch_window_ms=WAIT_S * 1000)
    run.engine.expect(3)
    run.add(*(request(str(i), PROMPTS[0], max_tokens=1) for i in range(3)))
    assert runner.batches.get(timeout=WAIT_S) == 3
    runner.allow()
    run.finish()


def test_a_request_that_comes_alone_does_not_wait(make_engine: MakeEngine) -> None:
    """Not for those that nobody expects, nor for one that was expected and is refused."""
    run = make_engine(max_batch_size=3, batch_window_ms=2 * WAIT_S * 1000)
    run.run_one(request("alone", PROMPTS[0], max_tokens=1))
    run.engine.expect(2)
    run.add(request("first", PROMPTS[0], max_tokens=1))
    run.engine.expect(-1)
    assert run.outputs.empty()
    run.engine.expect(-1)
    run.finish()


def test_priority_goes_first(make_engine: MakeEngine) -> None:
    """Of those that wait, the higher priority begins first."""
    run = make_engine(max_batch_size=1, started=False)
    run.add(request("low", PROMPTS[0], max_tokens=1))
    run.add(request("high", PROMPTS[0], max_tokens=1, priority=5))
    run.engine.start()
    assert [run.collect()[0].key, run.collect()[0].key] == ["high", "low"]


def test_what_has_not_begun_by_its_deadline_fails(make_engine: MakeEngine) -> None:
    """A generation that waits too long is not computed; one that has begun goes on."""
    run = make_engine(max_batch_size=1, started=False)
    in_time = time.monotonic() + WAIT_S
    run.add(request("begun", PROMPTS[0], max_tokens=8, deadline_s=in_time))
    run.add(request("late", PROMPTS[0], max_tokens=8, deadline_s=time.monotonic()))
    run.engine.start()
    answers = run.finish()
    error = answers["late"].error
    assert error is not None
    assert error.code is EngineErrorCode.EXPIRED
    assert answers["begun"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), EngineErrorCode.OUT_OF_MEMORY),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"),
            EngineErrorCode.OUT_OF_MEMORY,
        ),
        (RuntimeError("shape mismatch"), EngineErrorCode.INTERNAL_ERROR),
    ],
)
def test_a_failing_row_fails_alone(
    error: Exception,
    code: EngineErrorCode,
    make_engine: MakeEngine,
    make_runner: MakeRunner,
    tiny_model: LoadedModel,
    reference_greedy: Generate,
) -> None:
    """A row that makes every batch fail gets the error; the others' tokens do not change."""
    run = make_engine(runner=PoisonedRunner(make_runner(tiny_model), error))
    healthy = PROMPTS[:5]
    run.add(*(request(str(i), ids) for i, ids in enumerate(healthy)))
    run.add(request("poison", [5, POISON_ID, 6]))
    answers = run.finish()
    failure = answers["poison"].error
    assert failure is not None
    assert code == failure.code
    expected = [reference_greedy(ids, NUM_TOKENS) for ids in healthy]
    assert expected == [answers[str(i)].token_ids for i in range(len(healthy))]
    assert (run.engine.alive, run.engine.kv_usage) == (True, 0.0)


def test_a_row_with_nan_fails_alone(
    make_engine: MakeEngine,
    make_runner: MakeRunner,
    tiny_model: LoadedModel,
    reference_greedy: Generate,
) -> None:
    """NaN logits give one numerical error and change no neighbour."""
    run = make_engine(runner=NotANumberRunner(make_runner(tiny_model)))
    answers = run.run(request("poison", [5, POISON_ID]), request("a", PROMPTS[1]))
    failure = answers["poison"].error
    assert failure is not None
    assert failure.code is EngineErrorCode.NUMERICAL_ERROR
    assert reference_greedy(PROMPTS[1], NUM_TOKENS) == answers["a"].token_ids


def test_what_can_never_fit_is_refused(make_engine: MakeEngine) -> None:
    """A request larger than the whole KV pool gets out_of_memory; a small one beside it runs."""
    run = make_engine(num_blocks=2)
    answers = run.run(
        request("large", PROMPTS[1], max_tokens=26), request("small", PROMPTS[0], max_tokens=5)
    )
    failure = answers["large"].error
    assert failure is not None
    assert failure.code is EngineErrorCode.OUT_OF_MEMORY
    assert answers["small"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "bad",
    [
        request("a", [1, 512]),
        request("a", [-1]),
        request("a", [1], generated_ids=[512]),
        request("a", [1], sampling=SamplingParams(logit_bias={99999999: 5.0})),
        request("a", [1], sampling=SamplingParams(stop_token_ids=frozenset({-1}))),
        request("a", [1] * 512),
    ],
)
def test_bad_requests_are_refused_at_once(bad: EngineRequest, make_engine: MakeEngine) -> None:
    """Ids outside the vocabulary never reach the model; the next request works."""
    run = make_engine()
    with pytest.raises(ValueError, match="request a"):
        run.engine.add(bad)
    assert run.run_one(request("a", [1], max_tokens=1)).finish_reason is FinishReason.LENGTH


def test_a_key_runs_once(make_engine: MakeEngine) -> None:
    """A second request with a key that is in use is refused."""
    run = make_engine(started=False)
    run.add(request("a", [1]))
    with pytest.raises(ValueError, match="already"):
        run.engine.add(request("a", [1]))


def test_an_error_in_the_callback_is_the_engines_death(
    make_engine: MakeEngine, tiny_model: LoadedModel
) -> None:
    """What no row caused ends the engine visibly: not alive, `on_death` once, no more requests."""

    def refuse(_outputs: list[EngineOutput]) -> None:
        raise RuntimeError("nobody listens")

    run = make_engine(on_outputs=refuse)
    run.engine.add(request("a", [1]))
    assert str(run.deaths.get(timeout=WAIT_S)) == "nobody listens"
    assert not run.engine.alive
    with pytest.raises(EngineStoppedError):
        run.engine.add(request("b", [1]))


def test_stop_ends_within_a_step(make_engine: MakeEngine) -> None:
    """`stop` drops what runs, is idempotent, and leaves the engine not alive."""
    run = make_engine()
    run.add(request("a", PROMPTS[0], max_tokens=400))
    run.collect()
    run.engine.stop()
    run.engine.stop()
    assert not run.engine.alive
    assert run.engine.last_step_s is not None


def test_a_generation_that_begins_alone_is_computed_alone_until_it_is_shared(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """If the process died of a step, it would be this one's; the others go on behind it, and all
    get the tokens that they get anyway.
    """
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner)
    run.add(request("a", PROMPTS[0]))
    runner.batches.get(timeout=WAIT_S)
    run.add(replace(request("b", PROMPTS[1]), begins_alone=True), request("c", PROMPTS[2]))
    sizes = []
    for _ in range(4):
        runner.allow()
        sizes.append(runner.batches.get(timeout=WAIT_S))
    run.engine.share("b")
    for _ in range(2):
        runner.allow()
        sizes.append(runner.batches.get(timeout=WAIT_S))
    assert sizes == [1, 1, 1, 1, 3, 3]
    for _ in range(2 * NUM_TOKENS):
        runner.allow()
    answers = run.finish()
    alone = make_engine()
    alone.add(*(request(name, prompt) for name, prompt in zip("abc", PROMPTS, strict=False)))
    expected = alone.finish()
    assert {n: a.token_ids for n, a in answers.items()} == {
        n: a.token_ids for n, a in expected.items()
    }


def test_an_idle_engine_has_not_stood_still(
    make_engine: MakeEngine, make_runner: MakeRunner, tiny_model: LoadedModel
) -> None:
    """While the first step after an idle hour is under way, its beginning counts.

    The step before counted, so that the worker took itself for dead and ended.
    """
    runner = StepwiseRunner(make_runner(tiny_model))
    run = make_engine(runner=runner)
    began_s = time.monotonic()
    run.add(request("a", PROMPTS[0], max_tokens=1))
    runner.batches.get(timeout=WAIT_S)
    last_step_s = run.engine.last_step_s
    assert last_step_s is not None
    assert last_step_s >= began_s
    runner.allow()
    run.finish()


def test_the_stream_of_the_engine_repeats_its_text(make_engine: MakeEngine) -> None:
    """`text_stream` gives, for the same ids and stops, the deltas that the engine gave."""
    run = make_engine()
    answer = run.run_one(request("a", PROMPTS[4], sampling=SAMPLED))
    stream = run.engine.text_stream()
    deltas = [stream.push(token_id) for token_id in answer.token_ids]
    deltas[-1] += stream.finish()
    assert deltas == answer.deltas
