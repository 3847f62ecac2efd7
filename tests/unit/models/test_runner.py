"""The generic runner alone: its memory, and what it says of logits."""

import math
from typing import Any

import pytest
import torch

from headrace.models.batch import RowInput, Wanted
from headrace.models.kv_cache import KVPoolError
from headrace.models.loading import LoadedModel
from headrace.models.runner import TorchRunner

POOL_BYTES = 2 << 20


class SpoiledModel:
    """The model, with some logits replaced."""

    def __init__(self, model: Any, spoiled: dict[tuple[int, int], float]) -> None:
        self._model, self._spoiled = model, spoiled
        self.device = model.device

    def __call__(self, **kwargs: Any) -> Any:
        output = self._model(**kwargs)
        for (row, token_id), logit in self._spoiled.items():
            output.logits[0, row, token_id] = logit
        return output


def rows(*wanted: Wanted) -> list[RowInput]:
    return [RowInput([index], 0, [3 + index, 4, 5], want) for index, want in enumerate(wanted)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_said_of_their_row_only(
    bad: float, tiny_model: LoadedModel
) -> None:
    """The others' tokens are those that they would have got."""
    sound = TorchRunner(tiny_model.model, tiny_model.layout, kv_pool_bytes=POOL_BYTES)
    spoiled = TorchRunner(
        SpoiledModel(tiny_model.model, {(1, 5): bad}), tiny_model.layout, kv_pool_bytes=POOL_BYTES
    )
    asked = rows(Wanted.GREEDY, Wanted.GREEDY, Wanted.LOGITS)
    expected, found = sound.run(asked), spoiled.run(asked)
    assert found.is_finite == [True, False, True]
    assert found.greedy_ids[::2] == expected.greedy_ids[::2]
    assert torch.equal(found.logits, expected.logits)


def test_ties_go_to_the_lowest_id(tiny_model: LoadedModel) -> None:
    """As the sampler does it."""
    model = SpoiledModel(tiny_model.model, {(0, 9): 1e4, (0, 7): 1e4, (0, 300): 1e4})
    runner = TorchRunner(model, tiny_model.layout, kv_pool_bytes=POOL_BYTES)
    assert runner.run(rows(Wanted.GREEDY)).greedy_ids == [7]


def test_each_row_gets_what_it_wants(tiny_model: LoadedModel) -> None:
    """Nothing for a part of a prompt, a token, or all logits: its own."""
    runner = TorchRunner(tiny_model.model, tiny_model.layout, kv_pool_bytes=POOL_BYTES)
    asked = rows(Wanted.NOTHING, Wanted.LOGITS, Wanted.NOTHING, Wanted.GREEDY, Wanted.LOGITS)
    step = runner.run(asked)
    assert step.logits.shape == (2, tiny_model.vocab_size)
    assert step.logits.argmax(dim=-1).tolist() == step.greedy_ids[::2]
    assert len(step.greedy_ids) == len(step.is_finite) == 3
    nothing = runner.run(rows(Wanted.NOTHING))
    assert (nothing.greedy_ids, nothing.logits.shape[0]) == ([], 0)


def test_rows_of_very_different_lengths_decode_as_alone(tiny_model: LoadedModel) -> None:
    """They are attended to in several groups, and padding has no weight."""
    runner = TorchRunner(tiny_model.model, tiny_model.layout, kv_pool_bytes=POOL_BYTES)
    lengths = [400, 1, 399, 60, 31, 33, 350, 2]
    tables, first = [], 0
    for length in lengths:
        tables.append(list(range(first, first + length // 32 + 1)))
        first += len(tables[-1])
    for table, length in zip(tables, lengths, strict=True):
        ids = [3 + (7 * length + i) % 400 for i in range(length)]
        runner.run([RowInput(table, 0, ids, Wanted.NOTHING)])
    decodes = [
        RowInput(table, length, [11], Wanted.LOGITS)
        for table, length in zip(tables, lengths, strict=True)
    ]
    together = runner.run(decodes).logits.clone()
    alone = torch.cat([runner.run([one]).logits for one in decodes])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("pool_bytes", [1000, 1 << 60])
def test_a_pool_that_cannot_be_had_is_a_clear_error(
    pool_bytes: int, tiny_model: LoadedModel
) -> None:
    """It names the setting."""
    with pytest.raises(KVPoolError, match="HEADRACE_KV_POOL_MB"):
        TorchRunner(tiny_model.model, tiny_model.layout, kv_pool_bytes=pool_bytes)


def test_the_pool_keeps_to_its_bytes(tiny_model: LoadedModel) -> None:
    """As many whole blocks as fit."""
    block_bytes = tiny_model.layout.kv_format.block_bytes
    pool_bytes = 5 * block_bytes - 1
    runner = TorchRunner(tiny_model.model, tiny_model.layout, kv_pool_bytes=pool_bytes)
    assert runner.num_blocks == 4
