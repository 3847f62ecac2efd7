"""Decoding in fixed shapes: the same as in free ones, recorded or not, and never wrong."""

import logging
import math
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
)

from headrace.models.attention import ATTENTION_NAME, register_attention
from headrace.models.batch import BLOCK_TOKENS, RowInput, StepLogits, StepRunner, Wanted
from headrace.models.kv_cache import BlockMemory, KVLayout, LayerShape
from headrace.models.loading import LoadedModel
from headrace.models.padded_decode import (
    CHEAP_BLOCKS,
    MAX_GRAPHS,
    MAX_ROWS,
    MIN_BLOCKS,
    Bucket,
    Capture,
    PaddedDecode,
    StepOutput,
    bucket_of,
)
from headrace.models.request import EngineRequest, SamplingParams
from headrace.models.runner import TorchRunner, padded_decode
from headrace.models.staging import Staging
from tests.unit.models.captures import (
    EagerCapture,
    FailingCapture,
    spoiling_capture,
    stale_capture,
    traced_capture,
)
from tests.unit.models.engine_run import EngineRun, MakeRunner, make_cuda_runner

CUDA = torch.device("cuda", 0)
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 500,
}
NUM_BLOCKS = 80
LENGTHS = [5, 1, 290, 31, 32, 64, 2]


def make_runner(loaded: LoadedModel, capture: Capture | None) -> TorchRunner:
    """One whose memory is NaN where nothing was written, in the scratch block too."""
    block_bytes = loaded.layout.kv_format.block_bytes
    runner = TorchRunner(
        loaded.model, loaded.layout, kv_pool_bytes=NUM_BLOCKS * block_bytes, capture=capture
    )
    nan = array("f", [math.nan]) * (block_bytes // 4)
    for block_id in range(NUM_BLOCKS + 1):
        runner.write_block(block_id, nan.tobytes())
    return runner


class Decoding:
    """Rows of several lengths that decode step by step, with fixed tokens."""

    def __init__(self, *runners: StepRunner, lengths: list[int] = LENGTHS) -> None:
        self.runners, self.lengths = runners, list(lengths)
        free = list(range(NUM_BLOCKS))
        random.Random(3).shuffle(free)
        self.tables = [[free.pop() for _ in range(n // BLOCK_TOKENS + 2)] for n in lengths]
        self.free = free
        for table, length in zip(self.tables, lengths, strict=True):
            ids = [3 + (7 * length + i) % 400 for i in range(length)]
            for runner in runners:
                runner.run([RowInput(table, 0, ids, Wanted.NOTHING)])

    def step(self, *wanted: Wanted) -> list[StepLogits]:
        """What each runner says of the next tokens of the first rows."""
        rows = [
            RowInput(self.tables[i], self.lengths[i], [11 + i + self.lengths[i] % 50], want)
            for i, want in enumerate(wanted)
        ]
        for index in range(len(wanted)):
            self.lengths[index] += 1
        return [runner.run(rows) for runner in self.runners]

    def check(self, *wanted: Wanted) -> None:
        """All runners say the same."""
        expected, *others = self.step(*wanted)
        assert all(expected.is_finite)
        for found in others:
            assert found.greedy_ids == expected.greedy_ids
            assert found.is_finite == expected.is_finite
            torch.testing.assert_close(found.logits.cpu(), expected.logits, rtol=0, atol=1e-4)


def make_eager(loaded: LoadedModel) -> StepRunner:
    return make_runner(loaded, EagerCapture())


def make_traced(loaded: LoadedModel) -> StepRunner:
    return make_runner(loaded, traced_capture)


RECORDING: dict[str, MakeRunner] = {"eager": make_eager, "traced": make_traced}
if torch.cuda.is_available():
    RECORDING["cuda"] = make_cuda_runner


@pytest.mark.parametrize("make", RECORDING.values(), ids=RECORDING)
def test_rows_decode_as_in_free_shapes(
    make: MakeRunner, tiny_model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    """While they grow over the borders of blocks and buckets, whatever each of them wants."""
    decoding = Decoding(make_runner(tiny_model, None), make(tiny_model))
    logits, greedy, nothing = Wanted.LOGITS, Wanted.GREEDY, Wanted.NOTHING
    for _ in range(2):
        decoding.check(*[logits] * 7)
        decoding.check(logits, greedy, nothing, greedy, logits)
        decoding.check(nothing, greedy, logits, nothing)
        decoding.check(greedy)
        decoding.check(nothing)
    assert caplog.messages == []  # it has not given up


def test_a_bucket_is_recorded_once(tiny_model: LoadedModel) -> None:
    """Then replayed, until rows outgrow it."""
    capture = EagerCapture()
    decoding = Decoding(make_runner(tiny_model, capture), lengths=[250, 3, 4])
    for _ in range(8):
        decoding.step(Wanted.GREEDY, Wanted.GREEDY, Wanted.GREEDY)
    assert capture.shapes == [(4, 2 + 8), (4, 2 + 16)]


def test_padding_touches_nobodys_memory(tiny_model: LoadedModel) -> None:
    """After padded steps each block holds what it holds after plain ones."""
    plain, padded = make_runner(tiny_model, None), make_runner(tiny_model, traced_capture)
    decoding = Decoding(plain, padded)
    for _ in range(3):
        decoding.check(*[Wanted.LOGITS] * 5)
    for block_id in range(NUM_BLOCKS):
        blocks = [runner.read_block(block_id) for runner in (plain, padded)]
        expected, found = (
            torch.frombuffer(bytearray(block), dtype=torch.float32) for block in blocks
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4, equal_nan=True)
        assert block_id not in decoding.free or bool(found.isnan().all())


def test_a_row_that_is_not_finite_spoils_no_other(tiny_model: LoadedModel) -> None:
    """NaN in its own keys stays its own, in the first step of a bucket and in later ones."""
    decoding = Decoding(make_runner(tiny_model, traced_capture))
    nan = array("f", [math.nan]) * (tiny_model.layout.kv_format.block_bytes // 4)
    decoding.runners[0].write_block(decoding.tables[2][1], nan.tobytes())
    for _ in range(3):
        assert decoding.step(*[Wanted.GREEDY] * 5)[0].is_finite == [True, True, False, True, True]


class DeviceOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where an operation takes or gives a tensor that is not on the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, output)):
            if isinstance(value, torch.Tensor):
                assert value.device == CUDA, func
        return output


CONFIGS = [
    LlamaConfig(**SIZES),
    MistralConfig(**SIZES, sliding_window=16),
    Qwen3Config(**SIZES, head_dim=32),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_a_padded_step_does_nothing_that_a_graph_cannot_keep(config: PretrainedConfig) -> None:
    """On tensors that say they are on a GPU and have no values: asking for one is an error, and so
    is a tensor elsewhere.
    """
    register_attention()
    layers = dict.fromkeys(range(2), LayerShape(2, 32, 32))
    layout = KVLayout(layers, torch.float32, CUDA)
    with torch.no_grad(), FakeTensorMode():
        with CUDA:
            model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
        memory = BlockMemory(layout, NUM_BLOCKS * layout.kv_format.block_bytes)
        inputs = torch.zeros((4, 2 + 8), dtype=torch.long, device=CUDA)
        with DeviceOnly():  # type: ignore[no-untyped-call]
            output = padded_decode(model.eval(), memory, inputs)
            assert output.logits.shape == (4, 500)
            assert output.summary.shape == (2, 4)
            with pytest.raises(DataDependentOutputException):
                output.summary.tolist()


def capture_error(code: int) -> torch.AcceleratorError:
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operation not permitted when stream is capturing"),
        torch.OutOfMemoryError("CUDA out of memory"),
        capture_error(900),
        capture_error(901),
        capture_error(2),
    ],
)
def test_where_recording_fails_steps_stay_plain(
    error: RuntimeError, tiny_model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    """For good, with one warning, and with the right tokens from the first step on."""
    capture = FailingCapture(error)
    decoding = Decoding(make_runner(tiny_model, None), make_runner(tiny_model, capture))
    for count in (2, 2, 5, 1):
        decoding.check(*[Wanted.LOGITS] * count)
    assert capture.num_calls == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("capture", [stale_capture, spoiling_capture])
def test_a_recording_that_answers_wrongly_is_never_used(
    capture: Capture, tiny_model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    """The first step already gives the plain step's tokens, and leaves its keys and values. One
    in which no row wants anything shows nothing.
    """
    decoding = Decoding(make_runner(tiny_model, None), make_runner(tiny_model, capture))
    decoding.check(Wanted.NOTHING, Wanted.NOTHING)
    for count in (2, 2, 5, 1):
        decoding.check(*[Wanted.LOGITS] * count)
    assert caplog.messages == [
        "decoding goes on without CUDA graphs, which is slower: other logits with"
        " Bucket(num_rows=2, num_blocks=8)"
    ]


@pytest.mark.parametrize("error", [capture_error(700), torch.AcceleratorError("CUDA error")])
def test_a_broken_device_is_the_engines_affair(
    error: RuntimeError, tiny_model: LoadedModel
) -> None:
    """Plain steps would not work either."""
    decoding = Decoding(make_runner(tiny_model, FailingCapture(error)), lengths=[5])
    with pytest.raises(torch.AcceleratorError):
        decoding.step(Wanted.GREEDY)


def test_few_recordings_are_kept(tiny_model: LoadedModel) -> None:
    """The least recently used goes; when it is wanted again it is recorded again."""
    capture = EagerCapture()

    def step(inputs: torch.Tensor) -> StepOutput:
        return StepOutput(inputs[:, :1].float(), inputs[:, :2].T)

    padded = PaddedDecode(step, capture, Staging(torch.device("cpu")), scratch_block=9)

    def run(num_blocks: int, num_rows: int) -> None:
        rows = [RowInput([1] * num_blocks, num_blocks * 32 - 1, [5], Wanted.GREEDY)] * num_rows
        output = padded.run(rows, lambda: StepOutput(torch.full((num_rows, 1), 5.0), torch.ones(2)))
        assert output.logits.tolist() == [[5.0]] * num_rows

    shapes = [(8 << i, 1 << j) for i in range(6) for j in range(6)]
    assert len(shapes) > MAX_GRAPHS
    for num_blocks, num_rows in shapes:
        run(num_blocks, num_rows)
        run(8, 1)
    assert len(capture.shapes) == len(shapes)
    run(*shapes[-MAX_GRAPHS + 1])
    assert len(capture.shapes) == len(shapes)
    run(*shapes[1])
    assert len(capture.shapes) == len(shapes) + 1


def rows_of(*lengths: int, num_tokens: int = 1) -> list[RowInput]:
    return [RowInput([0] * 200, length, [1] * num_tokens, Wanted.GREEDY) for length in lengths]


@pytest.mark.parametrize(
    ("rows", "bucket"),
    [
        (rows_of(0), Bucket(1, MIN_BLOCKS)),
        (rows_of(255, 1, 2), Bucket(4, 8)),
        (rows_of(256, 1), Bucket(2, 16)),
        (rows_of(*[511] * 65), Bucket(128, 16)),
        (rows_of(*[0] * MAX_ROWS), None),  # 2,048 blocks for 256
        (rows_of(*[100] * MAX_ROWS), Bucket(256, 8)),
        (rows_of(*[100] * (MAX_ROWS + 1)), None),
        (rows_of(4000, *[3] * 7), Bucket(8, 128)),
        (rows_of(4000, *[3] * 15), None),
        ([*rows_of(5), *rows_of(5, num_tokens=2)], None),
        ([], None),
    ],
)
def test_steps_are_padded_to_powers_of_two(rows: list[RowInput], bucket: Bucket | None) -> None:
    """Unless they prefill, or padding would be most of them."""
    assert bucket_of(rows) == bucket
    assert CHEAP_BLOCKS == 8 * 128


def test_an_engine_says_the_same_in_fixed_shapes(
    tiny_model: LoadedModel, reference_greedy: Callable[[list[int], int], list[int]]
) -> None:
    """Prefill beside decoding, rows that come and go, seeds, preemption."""
    rng = random.Random(8)
    requests = [
        EngineRequest(
            str(index),
            [rng.randrange(3, 500) for _ in range(rng.choice([1, 5, 40, 90]))],
            rng.choice([20, 100, 150]),
            sampling=SamplingParams(temperature=float(index % 2), seed=index, ignore_eos=True),
        )
        for index in range(16)
    ]
    answers: list[dict[str, Any]] = []
    capture = EagerCapture()
    for one in (None, capture):
        run = EngineRun(tiny_model, make_small_runner(tiny_model, one))
        answers.append({key: found.token_ids for key, found in run.run(*requests).items()})
        assert run.engine.counters.num_preemptions > 0
        run.engine.stop()
    assert answers[0] == answers[1]
    assert len(capture.shapes) > 1
    for request in requests[::2]:
        expected = reference_greedy(list(request.prompt_ids), request.max_tokens)
        assert answers[1][request.key] == expected


def make_small_runner(loaded: LoadedModel, capture: Capture | None) -> TorchRunner:
    """With too few blocks for all rows at once."""
    pool_bytes = 16 * loaded.layout.kv_format.block_bytes
    return TorchRunner(loaded.model, loaded.layout, kv_pool_bytes=pool_bytes, capture=capture)
