"""The keys and values of one generation: one contiguous buffer per layer that grows, owned by that
generation alone.

It does not share prefixes between generations and does not know the scheduler's reservations.
"""

from dataclasses import dataclass

import torch

BLOCK_TOKENS = 64
"""Capacity is a multiple of this, so that short generations waste little."""


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


class RowCache:
    """KV cache of one row.

    Tokens are written at `length` onwards during a step and count only after `commit`, so a failed
    step leaves no trace and is simply run again.

    Shapes: a key buffer is (1, num_kv_heads, capacity, key_dim).
    """

    def __init__(self, layout: KVLayout, max_tokens: int) -> None:
        self._layout = layout
        self._max_tokens = max_tokens
        self._capacity = 0
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self.length = 0

    def reserve(self, num_new_tokens: int) -> None:
        """Make room for the tokens of the next step; doubles the buffers, so that growing costs
        little per token.
        """
        needed = self.length + num_new_tokens
        if needed <= self._capacity:
            return
        capacity = max(needed, min(2 * self._capacity, self._max_tokens))
        capacity = -(-capacity // BLOCK_TOKENS) * BLOCK_TOKENS
        for index, shape in self._layout.layers.items():
            self._keys[index] = self._grown(
                self._keys.get(index), shape.num_kv_heads, capacity, shape.key_dim
            )
            self._values[index] = self._grown(
                self._values.get(index), shape.num_kv_heads, capacity, shape.value_dim
            )
        self._capacity = capacity

    def write(
        self, layer_index: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values of one layer and return those of the whole row.

        Shapes: in (1, num_kv_heads, new tokens, dim), out (1, num_kv_heads, length + new tokens,
            dim), views.
        """
        end = self.length + keys.shape[2]
        all_keys, all_values = self._keys[layer_index], self._values[layer_index]
        all_keys[:, :, self.length : end] = keys
        all_values[:, :, self.length : end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def commit(self, num_new_tokens: int) -> None:
        """The step went well: its tokens now count."""
        self.length += num_new_tokens

    def truncate(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens`; their memory is kept for what comes instead."""
        self.length = min(self.length, num_tokens)

    def _grown(
        self, old: torch.Tensor | None, num_heads: int, capacity: int, dim: int
    ) -> torch.Tensor:
        new = torch.empty(
            (1, num_heads, capacity, dim), dtype=self._layout.dtype, device=self._layout.device
        )
        if old is not None:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new
