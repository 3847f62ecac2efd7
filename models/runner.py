"""One step of the model over a packed ragged batch: token ids in, logits of the rows that asked for
them out.

It knows rows only as caches and ids; what runs in a step is the scheduler's choice, what becomes of
the logits the sampler's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.models.attention import STEP_KWARG, RowSlice, StepRows
from headrace.models.kv_cache import KVLayout, RowCache


@dataclass(frozen=True, slots=True)
class RowInput:
    """The next tokens of one row, to be computed on top of its cache."""

    cache: RowCache
    token_ids: Sequence[int]
    needs_logits: bool


class Runner:
    """Runs steps of one model (a causal LM of transformers that uses our attention)."""

    def __init__(self, model: Any, layout: KVLayout) -> None:
        self._model = model
        self.layout = layout

    @torch.inference_mode()
    def run(self, rows: Sequence[RowInput]) -> torch.Tensor:
        """Compute the rows' tokens and write them to their caches; an exception leaves the caches
        as they were.

        Shapes: returns (rows that need logits, vocabulary), in the order of `rows`.
        """
        slices: list[RowSlice] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for row in rows:
            row.cache.reserve(len(row.token_ids))
            slices.append(RowSlice(row.cache, len(token_ids), len(row.token_ids)))
            positions.extend(range(row.cache.length, row.cache.length + len(row.token_ids)))
            token_ids.extend(row.token_ids)
            if row.needs_logits:
                wanted.append(len(token_ids) - 1)
        logits = forward(self._model, token_ids, positions, wanted, StepRows(slices))
        for piece in slices:
            piece.cache.commit(piece.num_tokens)
        return logits


def forward(
    model: Any,
    token_ids: Sequence[int],
    positions: Sequence[int],
    wanted: Sequence[int],
    step: object,
) -> torch.Tensor:
    """Run the model on one packed sequence; `wanted` are the indices whose logits are computed.

    Shapes: returns (wanted, vocabulary).
    """
    device = model.device
    indices = torch.tensor(wanted, dtype=torch.long, device=device)
    output = model(
        input_ids=torch.tensor([token_ids], dtype=torch.long, device=device),
        position_ids=torch.tensor([positions], dtype=torch.long, device=device),
        use_cache=False,
        logits_to_keep=indices,
        **{STEP_KWARG: step},
    )
    logits: torch.Tensor = output.logits[0]
    return logits
