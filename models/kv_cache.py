"""The memory of KV blocks on one device: two tensors per layer, written and gathered by token slot.

Which block belongs to whom is the scheduler's business. A block's tokens lie side by side, so block
`b` has the slots [b * BLOCK_TOKENS, (b + 1) * BLOCK_TOKENS).
"""

import hashlib
from dataclasses import dataclass

import torch

from headrace.models.batch import BLOCK_TOKENS, KVFormat
from headrace.schemas.errors import HeadraceError

DIGEST_CHARS = 8


@dataclass(frozen=True, slots=True)
class LayerShape:
    """KV shape of one attention layer: heads, and the sizes of a key and of a value."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a model's KV cache consists of: the shape of each attention layer, by layer index."""

    layers: dict[int, LayerShape]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token in all layers."""
        values = sum(
            shape.num_kv_heads * (shape.key_dim + shape.value_dim) for shape in self.layers.values()
        )
        return values * self.dtype.itemsize

    @property
    def kv_format(self) -> KVFormat:
        """The format of this module's blocks: per layer all keys, then all values."""
        shapes = [
            (index, shape.num_kv_heads, shape.key_dim, shape.value_dim)
            for index, shape in sorted(self.layers.items())
        ]
        digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:DIGEST_CHARS]
        dtype_name = str(self.dtype).removeprefix("torch.")
        return KVFormat(f"torch-{dtype_name}-{digest}", self.bytes_per_token * BLOCK_TOKENS)


class KVPoolError(HeadraceError):
    """The KV pool cannot be had in the size that was asked for."""

    def __init__(self, pool_bytes: int, reason: str) -> None:
        super().__init__(pool_bytes, reason)
        self.pool_bytes, self.reason = pool_bytes, reason

    def __str__(self) -> str:
        return (
            f"no KV pool of {self.pool_bytes / 2**20:.0f} MB: {self.reason};"
            " change HEADRACE_KV_POOL_MB"
        )


class BlockMemory:
    """The keys and values of all blocks; allocated and written once at the start, so that the
    process grows no further.

    Beside the blocks that `pool_bytes` hold there is `scratch_block`, which belongs to nobody:
    padding is written there and read from there.
    Shapes: per layer (slots, heads, dim).

    Raises: KVPoolError if `pool_bytes` hold no block, or the device has not so much memory.
    """

    def __init__(self, layout: KVLayout, pool_bytes: int) -> None:
        self.kv_format, self._device = layout.kv_format, layout.device
        self.num_blocks = pool_bytes // self.kv_format.block_bytes
        if self.num_blocks < 1:
            raise KVPoolError(pool_bytes, f"one block takes {self.kv_format.block_bytes} bytes")
        self.scratch_block = self.num_blocks
        num_slots = (self.num_blocks + 1) * BLOCK_TOKENS

        def pool(num_heads: int, dim: int) -> torch.Tensor:
            shape = (num_slots, num_heads, dim)
            return torch.empty(shape, dtype=layout.dtype, device=layout.device).zero_()

        try:
            self.layers = {
                index: (
                    pool(shape.num_kv_heads, shape.key_dim),
                    pool(shape.num_kv_heads, shape.value_dim),
                )
                for index, shape in sorted(layout.layers.items())
            }
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise KVPoolError(pool_bytes, "the device has not so much memory free") from error

    def read_block(self, block_id: int) -> bytes:
        """A copy of one block."""
        start = block_id * BLOCK_TOKENS
        parts = [
            pool[start : start + BLOCK_TOKENS].reshape(-1).view(torch.uint8)
            for layer in self.layers.values()
            for pool in layer
        ]
        return torch.cat(parts).cpu().numpy().tobytes()

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        """Overwrite one block. Raises: ValueError if the size is not `kv_format.block_bytes`."""
        if len(data) != self.kv_format.block_bytes:
            raise ValueError(
                f"a KV block has {self.kv_format.block_bytes} bytes, this one {len(data)}"
            )
        source = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        start, offset = block_id * BLOCK_TOKENS, 0
        for layer in self.layers.values():
            for pool in layer:
                target = pool[start : start + BLOCK_TOKENS]
                end = offset + target.numel() * target.element_size()
                target.copy_(source[offset:end].view(pool.dtype).view(target.shape))
                offset = end
