"""Runners around a real one, each named by how it behaves."""

import dataclasses
import queue
from collections.abc import Sequence

from headrace.models.batch import KVFormat, RowInput, StepLogits, StepRunner, Wanted
from tests.unit.models.engine_run import WAIT_S

POISON_ID = 500


class RunnerAround(StepRunner):
    """Does what the runner inside does."""

    def __init__(self, inside: StepRunner) -> None:
        self.inside = inside

    @property
    def kv_format(self) -> KVFormat:
        return self.inside.kv_format

    @property
    def num_blocks(self) -> int:
        return self.inside.num_blocks

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        return self.inside.run(rows)

    def read_block(self, block_id: int) -> bytes:
        return self.inside.read_block(block_id)

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        self.inside.write_block(block_id, data)


class PoisonedRunner(RunnerAround):
    """Fails whenever a row with the poison token is in the batch."""

    def __init__(self, inside: StepRunner, error: Exception) -> None:
        super().__init__(inside)
        self._error = error

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        if any(POISON_ID in row.token_ids for row in rows):
            raise self._error
        return self.inside.run(rows)


class NotANumberRunner(RunnerAround):
    """Gives NaN logits to rows with the poison token, and only to these."""

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        step = self.inside.run(rows)
        logits = step.logits.clone()
        asking = [row for row in rows if row.wanted is not Wanted.NOTHING]
        sampled = [row for row in asking if row.wanted is Wanted.LOGITS]
        for index, row in enumerate(sampled):
            if POISON_ID in row.token_ids:
                logits[index, 7] = float("nan")
        is_finite = [
            finite and POISON_ID not in row.token_ids
            for finite, row in zip(step.is_finite, asking, strict=True)
        ]
        return dataclasses.replace(step, is_finite=is_finite, logits=logits)


class StepwiseRunner(RunnerAround):
    """Runs a step only when the test allows it."""

    def __init__(self, inside: StepRunner) -> None:
        super().__init__(inside)
        self.batches: queue.Queue[int] = queue.Queue()
        self._permits: queue.Queue[None] = queue.Queue()

    def allow(self) -> None:
        self._permits.put(None)

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        self.batches.put(len(rows))
        self._permits.get(timeout=WAIT_S)
        return self.inside.run(rows)


class CountingRunner(RunnerAround):
    """Notes how many tokens each step computed, and how many rows wanted their logits."""

    def __init__(self, inside: StepRunner) -> None:
        super().__init__(inside)
        self.num_tokens: list[int] = []
        self.num_logits: list[int] = []

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        self.num_tokens.append(sum(len(row.token_ids) for row in rows))
        self.num_logits.append(sum(row.wanted is Wanted.LOGITS for row in rows))
        return self.inside.run(rows)
