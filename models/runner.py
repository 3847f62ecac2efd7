"""The generic runner: any decoder-only model of transformers with pluggable attention, on a CPU or
CUDA device, over paged KV memory.

It knows rows only as blocks and ids; what runs in a step is the scheduler's choice, what becomes of
the logits the sampler's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from headrace.models.attention import STEP_KWARG, AttentionStep
from headrace.models.batch import KVFormat, RowInput, StepLogits, StepRunner, Wanted
from headrace.models.cuda_graphs import CudaGraphCapture
from headrace.models.kv_cache import BlockMemory, KVLayout
from headrace.models.padded_decode import Capture, PaddedDecode, StepOutput
from headrace.models.paged_attention import padded_decode_step, paged_step
from headrace.models.staging import Staging
from headrace.models.varlen import find_varlen_attention


class TorchRunner(StepRunner):
    """Runs steps of one model, each as one packed sequence.

    Units: `kv_pool_bytes` is the memory for KV blocks, taken when it is made, with that of one
    block more. `capture` records steps that only decode; by default CUDA graphs do so where there
    is CUDA, and nothing on a CPU, where a call costs little and padding much.

    Raises: KVPoolError if the device cannot give that.
    """

    def __init__(
        self,
        model: Any,
        layout: KVLayout,
        *,
        kv_pool_bytes: int,
        capture: Capture | None = None,
    ) -> None:
        self._model = model
        self._memory = BlockMemory(layout, kv_pool_bytes)
        self._staging = Staging(layout.device)
        self._varlen = find_varlen_attention(layout)
        if capture is None and layout.device.type == "cuda":
            capture = CudaGraphCapture(layout.device)
        self._padded = None
        if capture is not None:
            self._padded = PaddedDecode(
                partial(padded_decode, model, self._memory),
                capture,
                self._staging,
                scratch_block=self._memory.scratch_block,
            )

    @property
    def kv_format(self) -> KVFormat:
        return self._memory.kv_format

    @property
    def num_blocks(self) -> int:
        return self._memory.num_blocks

    @torch.inference_mode()
    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        """See `StepRunner`."""
        plain = partial(self._plain, rows)
        output = plain() if self._padded is None else self._padded.run(rows, plain)
        wanted = [row.wanted for row in rows if row.wanted is not Wanted.NOTHING]
        asked = [index for index, want in enumerate(wanted) if want is Wanted.LOGITS]
        logits = output.logits
        if len(asked) < len(wanted):
            logits = logits.index_select(0, self._staging.send(asked)[0])
        greedy_ids, is_finite = output.summary.tolist()  # the one wait for the device
        return StepLogits(greedy_ids, [bool(finite) for finite in is_finite], logits)

    def read_block(self, block_id: int) -> bytes:
        """See `StepRunner`."""
        with torch.inference_mode():
            return self._memory.read_block(block_id)

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        """See `StepRunner`."""
        with torch.inference_mode():
            self._memory.write_block(block_id, data)

    def _plain(self, rows: Sequence[RowInput]) -> StepOutput:
        """The step of any rows, in the shapes that they have."""
        token_ids: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for row in rows:
            token_ids += row.token_ids
            positions += range(row.start, row.start + len(row.token_ids))
            if row.wanted is not Wanted.NOTHING:
                last.append(len(token_ids) - 1)
        ids, places, wanted = self._staging.send(token_ids, positions, last)
        step = paged_step(self._memory, rows, self._staging, self._varlen)
        return _output(forward(self._model, ids, places, wanted, step))


def forward(
    model: Any,
    token_ids: torch.Tensor | Sequence[int],
    positions: torch.Tensor | Sequence[int],
    wanted: torch.Tensor | Sequence[int],
    step: AttentionStep,
) -> torch.Tensor:
    """Run the model on one packed sequence; `wanted` are the indices whose logits are computed.

    Shapes: returns (wanted, vocabulary).
    """
    ids, places, kept = (
        torch.as_tensor(values, dtype=torch.long, device=model.device)
        for values in (token_ids, positions, wanted)
    )
    output = model(
        input_ids=ids[None],
        position_ids=places[None],
        use_cache=False,
        logits_to_keep=kept,
        **{STEP_KWARG: step},
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def padded_decode(model: Any, memory: BlockMemory, inputs: torch.Tensor) -> StepOutput:
    """See `padded_decode.PaddedStep`. All of it happens on the device, whatever the numbers are."""
    token_ids, positions, tables = inputs[:, 0], inputs[:, 1], inputs[:, 2:]
    step = padded_decode_step(memory, tables, positions)
    everything = torch.arange(inputs.shape[0], device=inputs.device)
    return _output(forward(model, token_ids, positions, everything, step))


def _output(logits: torch.Tensor) -> StepOutput:
    is_finite = torch.isfinite(logits.sum(dim=-1, dtype=torch.float32))
    return StepOutput(logits, torch.stack([logits.argmax(dim=-1), is_finite.long()]))
