"""Decoding in few fixed shapes, so that a step can be recorded once and replayed: batches are
padded to a bucket of rows and blocks, and all that differs from step to step lies in one tensor.

Padding rows write to and read from the scratch block. On CUDA a bucket is a CUDA graph
(`cuda_graphs.py`); the plain step of `runner.py` is what it is compared with, and what runs when a
bucket does not fit or recording fails.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from headrace.models.batch import BLOCK_TOKENS, RowInput, Wanted
from headrace.models.paged_attention import padded_table
from headrace.models.staging import Staging

logger = logging.getLogger(__name__)

MAX_ROWS = 256
"""Larger batches keep the device busy without graphs."""

MIN_BLOCKS = 8
"""Shorter contexts share one bucket."""

MAX_PADDING = 4
"""A step is not padded to more than this many times the blocks that its rows have, ..."""

CHEAP_BLOCKS = 1024
"""... unless they are so few."""

MAX_GRAPHS = 32
"""Buckets kept; the least recently used goes first."""

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far logits of the two steps may be apart, as a part of the largest one: another order of
summation makes less, a wrong key or position much more."""

_STREAM_CAPTURE_ERRORS = range(900, 909)  # cudaErrorStreamCaptureUnsupported ... WrongThread
_MEMORY_ERROR = 2  # cudaErrorMemoryAllocation


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step computed, still on the device.

    Shapes: `logits` (rows, vocabulary), `summary` (2, rows) int64: greedy ids, and whether all
    logits are finite.
    """

    logits: torch.Tensor
    summary: torch.Tensor

    def select(self, indices: torch.Tensor | slice) -> "StepOutput":
        """Only these rows."""
        return StepOutput(self.logits[indices], self.summary[:, indices])


PaddedStep = Callable[[torch.Tensor], StepOutput]
"""Computes a padded batch.

Shapes: takes (rows, 2 + blocks) int64: token id, position, block ids.
"""

Capture = Callable[[PaddedStep, torch.Tensor], Callable[[], StepOutput]]
"""Records the step on that tensor; calling what it returns does it again on what lies there then,
and overwrites what it returned before.
"""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A shape that steps are padded to."""

    num_rows: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class _Recording:
    inputs: torch.Tensor
    replay: Callable[[], StepOutput]


class PaddedDecode:
    """The recorded steps of one model. One thread uses it, in inference mode."""

    def __init__(
        self, step: PaddedStep, capture: Capture, staging: Staging, *, scratch_block: int
    ) -> None:
        self._step, self._capture, self._staging = step, capture, staging
        self._scratch_block = scratch_block
        self._recordings: OrderedDict[Bucket, _Recording] = OrderedDict()
        self._is_given_up = False

    def run(self, rows: Sequence[RowInput], plain: Callable[[], StepOutput]) -> StepOutput:
        """The output for the rows that want anything: replayed, or `plain`'s.

        The first step of a bucket runs both ways. If they differ, or recording fails, it is `plain`
        from then on.

        Raises: torch.AcceleratorError, after which the device cannot be used any more; whatever
            `plain` does.
        """
        bucket = None if self._is_given_up else bucket_of(rows)
        if bucket is None:
            return plain()
        recording = self._recordings.get(bucket)
        if recording is not None:
            self._recordings.move_to_end(bucket)
            return self._replay(recording, bucket, rows)
        if all(row.wanted is Wanted.NOTHING for row in rows):
            return plain()  # there would be nothing to compare
        return self._first(bucket, rows, plain)

    def _first(
        self, bucket: Bucket, rows: Sequence[RowInput], plain: Callable[[], StepOutput]
    ) -> StepOutput:
        found = reason = None
        try:
            recording = self._record(bucket)
            found = self._replay(recording, bucket, rows)
        except RuntimeError as error:
            if _is_fatal(error):
                raise
            reason = error.with_traceback(None)  # its frames would keep tensors alive
        # NOTE plain comes last: whatever the other wrote to the rows' blocks is written again.
        output = plain()
        if found is not None and _agree(found, output):
            self._recordings[bucket] = recording
        else:
            self._give_up(reason or f"other logits with {bucket}")
        return output

    def _record(self, bucket: Bucket) -> _Recording:
        """Recorded on padding only: no row's memory is touched, and what does not come from the
        inputs will show when they change.
        """
        while len(self._recordings) >= MAX_GRAPHS:
            self._recordings.popitem(last=False)
        shape = (bucket.num_rows, 2 + bucket.num_blocks)
        inputs = torch.zeros(shape, dtype=torch.long, device=self._staging.device)
        self._staging.fill(inputs, self._padding(bucket) * bucket.num_rows)
        return _Recording(inputs, self._capture(self._step, inputs))

    def _replay(
        self, recording: _Recording, bucket: Bucket, rows: Sequence[RowInput]
    ) -> StepOutput:
        values: list[int] = []
        for row in rows:
            values += (row.token_ids[0], row.start)
            values += padded_table(row, bucket.num_blocks, self._scratch_block)
        values += self._padding(bucket) * (bucket.num_rows - len(rows))
        self._staging.fill(recording.inputs, values)
        output = recording.replay()
        wanted = [index for index, row in enumerate(rows) if row.wanted is not Wanted.NOTHING]
        if len(wanted) == len(rows):
            return output.select(slice(len(rows)))
        return output.select(self._staging.send(wanted)[0])

    def _padding(self, bucket: Bucket) -> list[int]:
        """A padding row: the first token of a sequence in the scratch block."""
        return [0, 0, *[self._scratch_block] * bucket.num_blocks]

    def _give_up(self, reason: object) -> None:
        self._is_given_up = True
        self._recordings.clear()
        logger.warning("decoding goes on without CUDA graphs, which is slower: %s", reason)


def bucket_of(rows: Sequence[RowInput]) -> Bucket | None:
    """The bucket for a step, or None if it has other rows than decoding ones, or would be padded
    too much.
    """
    if not 0 < len(rows) <= MAX_ROWS or any(len(row.token_ids) != 1 for row in rows):
        return None
    used = [row.start // BLOCK_TOKENS + 1 for row in rows]
    bucket = Bucket(_power_of_two(len(rows)), max(MIN_BLOCKS, _power_of_two(max(used))))
    padded = bucket.num_rows * bucket.num_blocks
    return bucket if padded <= max(CHEAP_BLOCKS, MAX_PADDING * sum(used)) else None


def _power_of_two(count: int) -> int:
    """The least one that is not below `count`."""
    return int(1 << (count - 1).bit_length())


def _agree(found: StepOutput, expected: StepOutput) -> bool:
    logits = expected.logits.float()
    largest = float(logits.nan_to_num(0, 0, 0).abs().max()) if logits.numel() else 0.0
    return torch.allclose(
        found.logits.float(),
        logits,
        rtol=0,
        atol=TOLERANCE[expected.logits.dtype] * largest,
        equal_nan=True,
    )


def _is_fatal(error: RuntimeError) -> bool:
    """Whether the device cannot be used any more."""
    if not isinstance(error, torch.AcceleratorError):
        return False
    code = getattr(error, "error_code", None)
    return code not in _STREAM_CAPTURE_ERRORS and code != _MEMORY_ERROR
