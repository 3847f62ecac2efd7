"""Attention over blocks, against the formula: prompts, parts of prompts, decoding rows, windows."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headrace.models.attention import AttentionOptions
from headrace.models.attention_parts import VarlenAttention
from headrace.models.batch import BLOCK_TOKENS, RowInput, Wanted
from headrace.models.kv_cache import BlockMemory, KVLayout, LayerShape
from headrace.models.paged_attention import PagedStep, padded_decode_step, paged_step
from headrace.models.staging import Staging
from headrace.models.varlen import find_varlen_attention, is_right

CPU = torch.device("cpu")
SHAPE = LayerShape(num_kv_heads=2, key_dim=8, value_dim=8)
LAYOUT = KVLayout({0: SHAPE, 1: SHAPE}, torch.float32, CPU)
NUM_HEADS, NUM_BLOCKS = 6, 64
WINDOWS = [None, 1, 5, 32, 1000]


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """The formula, token by token; the queries are those of the last tokens."""
    start = keys.shape[0] - query.shape[0]
    per_head = query.shape[1] // keys.shape[1]
    scale = options.scale or 1 / math.sqrt(query.shape[2])
    outputs = []
    for index, token in enumerate(query):
        end = start + index + 1
        first = 0 if options.window_tokens is None else max(0, end - options.window_tokens)
        seen_keys = keys[first:end].repeat_interleave(per_head, dim=1)
        seen_values = values[first:end].repeat_interleave(per_head, dim=1)
        scores = torch.einsum("hd,nhd->hn", token, seen_keys) * scale
        outputs.append(torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), seen_values))
    return torch.stack(outputs)


def varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    max_queries: int,
    max_keys: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    num_splits: int,
) -> torch.Tensor:
    """What torch's kernel is documented to do."""
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert (window_size[1], num_splits, enable_gqa) == (0, 1, True)
    num_queries, num_keys = query_ends.diff().tolist(), key_ends.diff().tolist()
    assert (max(num_queries), max(num_keys)) == (max_queries, max_keys)
    window = None if window_size[0] == -1 else window_size[0] + 1
    options = AttentionOptions(scale, window)
    parts = zip(
        torch.split(query, num_queries),
        torch.split(key, num_keys),
        torch.split(value, num_keys),
        strict=True,
    )
    return torch.cat([attend(*part, options) for part in parts])


class Sequences:
    """Rows with random keys and values, of which those before `start` are in the blocks. All else
    in the memory is NaN.
    """

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        self.memory = BlockMemory(LAYOUT, NUM_BLOCKS * LAYOUT.kv_format.block_bytes)
        for layer in self.memory.layers.values():
            for pool in layer:
                pool.fill_(math.nan)
        free = list(range(NUM_BLOCKS))
        random.Random(1).shuffle(free)
        generator = torch.Generator().manual_seed(1)
        self.rows: list[RowInput] = []
        self.queries: list[torch.Tensor] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for start, num_tokens in places:
            end = start + num_tokens
            block_ids = [free.pop() for _ in range(end // BLOCK_TOKENS + 1)]
            self.rows.append(RowInput(block_ids, start, [7] * num_tokens, Wanted.NOTHING))
            self.queries.append(torch.randn((num_tokens, NUM_HEADS, 8), generator=generator))
            self.keys.append(torch.randn((end, 2, 8), generator=generator))
            self.values.append(torch.randn((end, 2, 8), generator=generator))
            for position in range(start):
                block, place = block_ids[position // BLOCK_TOKENS], position % BLOCK_TOKENS
                for index in LAYOUT.layers:
                    keys, values = self.memory.layers[index]
                    keys[block * BLOCK_TOKENS + place] = self.keys[-1][position]
                    values[block * BLOCK_TOKENS + place] = self.values[-1][position]

    def check(self, step: PagedStep, num_padding: int = 0) -> None:
        """All windows, in both layers, by one step."""
        padding = [torch.ones((num_padding, heads, 8)) for heads in (NUM_HEADS, 2)]
        starts = [row.start for row in self.rows]
        new_keys = [keys[start:] for keys, start in zip(self.keys, starts, strict=True)]
        new_values = [values[start:] for values, start in zip(self.values, starts, strict=True)]
        query = torch.cat([*self.queries, padding[0]])
        key, value = (torch.cat([*new, padding[1]]) for new in (new_keys, new_values))
        packed = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
        for index, window in enumerate([*WINDOWS, *WINDOWS]):
            options = AttentionOptions(0.3 if index % 2 else None, window)
            expected = torch.cat(
                [
                    attend(*one, options)
                    for one in zip(self.queries, self.keys, self.values, strict=True)
                ]
            )
            found = step.attend(index % 2, packed[0], packed[1], packed[2], options)[0]
            torch.testing.assert_close(found[: len(expected)], expected, rtol=0, atol=1e-5)


MIXED = [(0, 40), (70, 1), (33, 9), (0, 1), (300, 1), (31, 2), (32, 1), (31, 1), (250, 1)]


@pytest.mark.parametrize("kernel", [None, varlen], ids=["row by row", "in one call"])
def test_rows_attend_to_all_of_their_own_tokens_or_to_the_windows(
    kernel: VarlenAttention | None,
) -> None:
    """Whatever else lies in the memory."""
    sequences = Sequences(MIXED)
    sequences.check(paged_step(sequences.memory, sequences.rows, Staging(CPU), kernel))


@pytest.mark.parametrize("num_padding", [0, 3])
def test_a_padded_step_attends_as_any_other(num_padding: int) -> None:
    """Padding rows in the scratch block, which held NaN, disturb nobody."""
    sequences = Sequences([(start, 1) for start in (70, 0, 300, 31, 32, 255)])
    memory, num_blocks = sequences.memory, 16
    tables = [[*row.block_ids, *[0] * num_blocks][:num_blocks] for row in sequences.rows]
    tables += [[memory.scratch_block] * num_blocks] * num_padding
    starts = [row.start for row in sequences.rows] + [0] * num_padding
    step = padded_decode_step(memory, torch.tensor(tables), torch.tensor(starts))
    sequences.check(step, num_padding)


def test_a_kernel_that_is_right_is_believed() -> None:
    """It was compared on the model's own shapes."""
    assert is_right(varlen, LAYOUT)


def _shifted(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The diagonal begins at the first key: right for whole prompts only."""
    query_ends, key_ends = args[2], args[3]
    outputs = []
    for i in range(len(query_ends) - 1):
        own = query[query_ends[i] : query_ends[i + 1]]
        place = slice(int(key_ends[i]), int(key_ends[i]) + len(own))
        options = AttentionOptions(kwargs["scale"], None)
        outputs.append(attend(own, args[0][place], args[1][place], options))
    return torch.cat(outputs)


def _without_windows(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return varlen(query, *args, **{**kwargs, "window_size": (-1, 0)})


def _not_a_number(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.full_like(query, math.nan)


def _refusing(*args: Any, **kwargs: Any) -> torch.Tensor:
    raise RuntimeError("FlashAttention forward only supports head dimension at most 256")


def _of_another_time(*args: Any) -> torch.Tensor:
    raise NotImplementedError  # never reached: it knows no keyword


@pytest.mark.parametrize(
    "kernel", [_shifted, _without_windows, _not_a_number, _refusing, _of_another_time]
)
def test_a_kernel_that_is_not_right_is_left_alone(
    kernel: VarlenAttention, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning, since prompts then take longer."""
    assert not is_right(kernel, LAYOUT)
    assert caplog.messages[0].startswith("prompts are attended to row by row")
    assert len(caplog.messages) == 1


def test_a_broken_device_is_not_taken_for_a_wrong_kernel() -> None:
    """Nothing else would work on it either."""

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        is_right(kernel, LAYOUT)


if torch.cuda.is_available():

    def test_a_gpu_has_such_a_kernel() -> None:
        """And it is right."""
        layout = KVLayout({0: LayerShape(2, 64, 64)}, torch.bfloat16, torch.device("cuda"))
        assert find_varlen_attention(layout) is not None


def test_a_cpu_has_no_such_kernel() -> None:
    """Nobody asks torch for it."""
    assert find_varlen_attention(LAYOUT) is None
