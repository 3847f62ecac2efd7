"""`StepRunner` over the native decoder: Python lists in, one call, Python lists out."""

from array import array
from collections.abc import Sequence

import torch

from headrace.models.batch import BLOCK_TOKENS, KVFormat, RowInput, StepLogits, StepRunner, Wanted
from headrace.models.kv_cache import KVPoolError
from headrace.models.native.library import NativeDecoder, StepRow


class NativeRunner(StepRunner):
    """Runs steps of a native decoder; see `StepRunner`.

    Takes all its memory at once: `kv_pool_bytes` for KV blocks, and what steps need of up to
    `max_tokens` tokens in `max_rows` rows.

    Raises: KVPoolError if there is not so much.
    """

    def __init__(
        self, decoder: NativeDecoder, *, kv_pool_bytes: int, max_tokens: int, max_rows: int
    ) -> None:
        shape = decoder.shape
        self._decoder, self._num_blocks = decoder, kv_pool_bytes // shape.block_bytes
        if self._num_blocks < 1:
            raise KVPoolError(kv_pool_bytes, f"one block takes {shape.block_bytes} bytes")
        try:
            decoder.allocate(num_blocks=self._num_blocks, max_tokens=max_tokens, max_rows=max_rows)
        except MemoryError as error:
            raise KVPoolError(kv_pool_bytes, "the system has not so much memory free") from error
        self._max_tokens, self._max_rows = max_tokens, max_rows
        sizes = f"{shape.num_layers}x{shape.num_kv_heads}x{shape.head_dim}"
        self._kv_format = KVFormat(f"native-{decoder.kernels}-{sizes}", shape.block_bytes)
        self._greedy = torch.zeros(max_rows, dtype=torch.int32)
        self._finite = torch.zeros(max_rows, dtype=torch.uint8)
        self._logits = torch.zeros((0, shape.vocab), dtype=torch.float32)

    @property
    def kv_format(self) -> KVFormat:
        return self._kv_format

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        """See `StepRunner`. Bit by bit, what comes for a row does not depend on the others.

        Raises: ValueError for more tokens or rows than were agreed, ids outside the vocabulary, or
            too few blocks.
        """
        self._check(rows)
        kept = []  # the arrays live until the call is over
        step = (StepRow * len(rows))()
        for place, row in zip(step, rows, strict=True):
            blocks, token_ids = array("i", row.block_ids), array("i", row.token_ids)
            kept += [blocks, token_ids]
            place.blocks, _ = blocks.buffer_info()
            place.token_ids, place.num_tokens = token_ids.buffer_info()
            place.start, place.wanted = row.start, row.wanted
        num_wanted = sum(row.wanted is not Wanted.NOTHING for row in rows)
        num_logits = sum(row.wanted is Wanted.LOGITS for row in rows)
        if num_logits > len(self._logits):
            self._logits = self._logits.new_zeros((self._max_rows, self._logits.shape[1]))
        self._decoder.step(
            step, self._greedy.data_ptr(), self._finite.data_ptr(), self._logits.data_ptr()
        )
        return StepLogits(
            greedy_ids=self._greedy[:num_wanted].tolist(),
            is_finite=self._finite[:num_wanted].bool().tolist(),
            logits=self._logits[:num_logits],
        )

    def read_block(self, block_id: int) -> bytes:
        """See `StepRunner`."""
        return bytes(self._block(block_id))

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        """See `StepRunner`."""
        if len(data) != self._kv_format.block_bytes:
            raise ValueError(f"a block has {self._kv_format.block_bytes} bytes, not {len(data)}")
        self._block(block_id)[:] = data

    def _block(self, block_id: int) -> memoryview:
        if not 0 <= block_id < self._num_blocks:
            raise ValueError(f"there is no block {block_id}")
        return self._decoder.block(block_id)

    def _check(self, rows: Sequence[RowInput]) -> None:
        vocab, positions = self._decoder.shape.vocab, self._decoder.shape.max_positions
        num_tokens = 0
        for row in rows:
            num_tokens += len(row.token_ids)
            end = row.start + len(row.token_ids)
            if not row.token_ids or end > min(len(row.block_ids) * BLOCK_TOKENS, positions):
                raise ValueError(f"no room for tokens {row.start}...{end}")
            if min(row.token_ids) < 0 or max(row.token_ids) >= vocab:
                raise ValueError(f"token ids must be in 0...{vocab - 1}")
            if min(row.block_ids) < 0 or max(row.block_ids) >= self._num_blocks:
                raise ValueError(f"block ids must be in 0...{self._num_blocks - 1}")
        if num_tokens > self._max_tokens or len(rows) > self._max_rows:
            raise ValueError(f"{num_tokens} tokens in {len(rows)} rows are too many")
