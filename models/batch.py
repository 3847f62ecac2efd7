"""What goes into one step of a model and what comes out: the border between the scheduler's world,
which counts tokens and blocks, and the runners, which own the tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

BLOCK_TOKENS = 32
"""Tokens of a KV block: what is shared, evicted, and sent to Redis as a whole."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How a block of KV state lies in memory; blocks of equal format and fingerprint are
    interchangeable between processes.
    """

    name: str
    block_bytes: int
    block_tokens: int = BLOCK_TOKENS

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token in all layers."""
        return self.block_bytes // self.block_tokens


class Wanted(IntEnum):
    """What a row needs of its last token's logits."""

    NOTHING = 0
    GREEDY = 1
    LOGITS = 2


@dataclass(frozen=True, slots=True)
class RowInput:
    """The next tokens of one row, to be computed on top of the `start` tokens in its blocks.

    `block_ids` have room for `start + len(token_ids)` tokens at least.
    """

    block_ids: Sequence[int]
    start: int
    token_ids: Sequence[int]
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class StepLogits:
    """What the rows wanted, in their order.

    `greedy_ids` (lowest id of equal ones) and `is_finite` are there for each row that wanted
    anything.
    Shapes: `logits` is (rows that wanted LOGITS, vocabulary); it is overwritten by the next step.
    """

    greedy_ids: list[int]
    is_finite: list[bool]
    logits: torch.Tensor


class StepRunner(Protocol):
    """Runs steps of one model over a pool of KV blocks that it owns.

    One thread calls it. A step that raises has changed nothing that counts: what it wrote lies
    behind each row's `start` and is written again.
    """

    @property
    def kv_format(self) -> KVFormat: ...

    @property
    def num_blocks(self) -> int: ...

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        """Compute the rows' tokens and write their keys and values into their blocks."""

    def read_block(self, block_id: int) -> bytes:
        """A copy of one block."""

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        """Overwrite one block with a copy made by `read_block`, perhaps in another process.

        Raises: ValueError if it has not `kv_format.block_bytes` bytes.
        """
