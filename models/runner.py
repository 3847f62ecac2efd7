"""The generic runner: any decoder-only model of transformers with pluggable attention, on a CPU or
CUDA device, over paged KV memory.

It knows rows only as blocks and ids; what runs in a step is the scheduler's choice, what becomes of
the logits the sampler's.
"""

from collections.abc import Sequence
from typing import Any

import torch

from headrace.models.attention import STEP_KWARG, AttentionStep
from headrace.models.batch import KVFormat, RowInput, StepLogits, StepRunner, Wanted
from headrace.models.kv_cache import BlockMemory, KVLayout
from headrace.models.paged_attention import PagedStep, upload


class TorchRunner(StepRunner):
    """Runs steps of one model, each as one packed sequence.

    Units: `kv_pool_bytes` is the memory for KV blocks, taken when it is made.

    Raises: KVPoolError if the device cannot give that.
    """

    def __init__(self, model: Any, layout: KVLayout, *, kv_pool_bytes: int) -> None:
        self._model = model
        self._memory = BlockMemory(layout, kv_pool_bytes)

    @property
    def kv_format(self) -> KVFormat:
        return self._memory.kv_format

    @property
    def num_blocks(self) -> int:
        return self._memory.num_blocks

    @torch.inference_mode()
    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        """See `StepRunner`."""
        token_ids: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for row in rows:
            token_ids += row.token_ids
            positions += range(row.start, row.start + len(row.token_ids))
            if row.wanted is not Wanted.NOTHING:
                last.append(len(token_ids) - 1)
        step = PagedStep(self._memory, rows, self._model.device)
        logits = forward(self._model, token_ids, positions, last, step)
        return _step_logits(logits, [row.wanted for row in rows if row.wanted])

    def read_block(self, block_id: int) -> bytes:
        """See `StepRunner`."""
        with torch.inference_mode():
            return self._memory.read_block(block_id)

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        """See `StepRunner`."""
        with torch.inference_mode():
            self._memory.write_block(block_id, data)


def forward(
    model: Any,
    token_ids: Sequence[int],
    positions: Sequence[int],
    wanted: Sequence[int],
    step: AttentionStep,
) -> torch.Tensor:
    """Run the model on one packed sequence; `wanted` are the indices whose logits are computed.

    Shapes: returns (wanted, vocabulary).
    """
    device = model.device
    output = model(
        input_ids=upload([token_ids], torch.long, device),
        position_ids=upload([positions], torch.long, device),
        use_cache=False,
        logits_to_keep=upload(wanted, torch.long, device),
        **{STEP_KWARG: step},
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def _step_logits(logits: torch.Tensor, wanted: Sequence[Wanted]) -> StepLogits:
    """Shapes: logits (rows that wanted anything, vocabulary)."""
    is_finite = torch.isfinite(logits.sum(dim=-1, dtype=torch.float32))
    greedy_ids = logits.argmax(dim=-1)
    asked = [index for index, want in enumerate(wanted) if want is Wanted.LOGITS]
    if len(asked) < len(wanted):
        logits = logits.index_select(0, upload(asked, torch.long, logits.device))
    return StepLogits(greedy_ids.tolist(), is_finite.tolist(), logits)
