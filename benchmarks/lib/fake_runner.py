"""A runner that computes nothing, so that only the way around the model is measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from headrace.models.batch import KVFormat, RowInput, StepLogits, Wanted

ROWS_PER_STEP = 64
_SHAPE = (64, 1024, 1024)


@dataclass(frozen=True)
class FakeWork:
    """What a step of up to ROWS_PER_STEP tokens does; one of more tokens does it longer.

    It sleeps for `step_ms`, or computes `num_matmuls` products where that is not 0.
    """

    step_ms: float
    num_matmuls: int = 0

    @classmethod
    def busy(cls, step_ms: float) -> "FakeWork":
        """Work that takes `step_ms` on this machine now."""
        multiply = _Multiplier()
        timings_s = []
        for _ in range(100):
            started_s = time.perf_counter()
            multiply(10)
            timings_s.append((time.perf_counter() - started_s) / 10)
        return cls(step_ms, max(1, round(step_ms / 1000 / median(timings_s))))


class FakeRunner:
    """Gives rows made-up tokens; its KV pool is never short."""

    def __init__(self, work: FakeWork, *, vocab_size: int) -> None:
        self._work, self._vocab_size = work, vocab_size
        self._multiply = _Multiplier()
        self.kv_format = KVFormat("fake", block_bytes=32)
        self.num_blocks = 1 << 14

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        scale = max(1.0, sum(len(row.token_ids) for row in rows) / ROWS_PER_STEP)
        if self._work.num_matmuls:
            self._multiply(round(self._work.num_matmuls * scale))
        else:
            time.sleep(self._work.step_ms / 1000 * scale)
        wanted = [row for row in rows if row.wanted is not Wanted.NOTHING]
        ids = [_made_up(row) % self._vocab_size for row in wanted]
        return StepLogits(ids, [True] * len(ids), torch.empty(0, self._vocab_size))

    def read_block(self, block_id: int) -> bytes:
        return bytes(self.kv_format.block_bytes)

    def write_block(self, block_id: int, data: Any) -> None:
        """Nothing is kept."""


class _Multiplier:
    """Matrix products of one size, without the GIL."""

    def __init__(self) -> None:
        rows, inner, columns = _SHAPE
        self._left, self._right = torch.ones(rows, inner), torch.ones(inner, columns)

    @torch.inference_mode()
    def __call__(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._left, self._right)


def _made_up(row: RowInput) -> int:
    return 1000 + (row.start * 7919 + row.token_ids[-1] * 31) % 20_000
