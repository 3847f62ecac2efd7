"""How rows of a step attend to their tokens, once it is known where these lie.

Slots are places in the KV memory. No slot is gathered that a row has not written: a masked value
that is NaN still gives NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from headrace.models.attention import AttentionOptions
from headrace.models.batch import BLOCK_TOKENS

VarlenAttention = Callable[..., torch.Tensor]
"""A function like `torch.nn.attention.varlen.varlen_attn`; see `varlen.py`."""


class Part(Protocol):
    """Some rows of a step, attended to together."""

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Shapes: query (tokens of these rows, heads, dim), keys and values (slots, KV heads, dim);
        returns (tokens, heads, value dim).
        """


@dataclass(slots=True)
class PrefillRow(Part):
    """One row with several new tokens: [start, start + num_tokens) of its sequence.

    Shapes: `slots` (start + num_tokens,).
    """

    start: int
    num_tokens: int
    slots: torch.Tensor
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `Part`."""
        window = options.window_tokens
        is_causal = self.start == 0 and (window is None or self.num_tokens <= window)
        slots = self.slots[self._first(window) :]
        attended = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys.index_select(0, slots).transpose(0, 1)[None],
            values.index_select(0, slots).transpose(0, 1)[None],
            attn_mask=None if is_causal else self._mask(window),
            is_causal=is_causal,
            scale=options.scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return attended[0].transpose(0, 1)

    def _first(self, window_tokens: int | None) -> int:
        """The first token that any of the new ones sees."""
        return 0 if window_tokens is None else max(0, self.start + 1 - window_tokens)

    def _mask(self, window_tokens: int | None) -> torch.Tensor:
        """Which token each new one sees. Shapes: (new tokens, tokens from the first on) bool."""
        mask = self.masks.get(window_tokens)
        if mask is None:
            end, device = self.start + self.num_tokens, self.slots.device
            query_positions = torch.arange(self.start, end, device=device)[:, None]
            key_positions = torch.arange(self._first(window_tokens), end, device=device)[None, :]
            mask = key_positions <= query_positions
            if window_tokens is not None:
                mask &= key_positions > query_positions - window_tokens
            self.masks[window_tokens] = mask
        return mask


@dataclass(frozen=True, slots=True)
class PackedPrefill(Part):
    """Rows with several new tokens, in one call of a kernel for rows of any length.

    Shapes: `slots` (all tokens of all rows,), `query_ends` and `key_ends` (rows + 1,) int32, both
    beginning with 0.
    """

    attention: VarlenAttention
    slots: torch.Tensor
    query_ends: torch.Tensor
    key_ends: torch.Tensor
    max_queries: int
    max_keys: int

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `Part`."""
        window = options.window_tokens
        return self.attention(
            query.contiguous(),
            keys.index_select(0, self.slots),
            values.index_select(0, self.slots),
            self.query_ends,
            self.key_ends,
            self.max_queries,
            self.max_keys,
            scale=options.scale,
            window_size=(-1 if window is None else window - 1, 0),  # without the token itself
            enable_gqa=query.shape[1] != keys.shape[1],
            num_splits=1,  # a row's sums do not depend on the rows beside it
        )


@dataclass(slots=True)
class DecodeGroup(Part):
    """Rows with one new token each, padded to `longest` tokens; none has fewer than `shortest`.

    Shapes: `tables` (rows, blocks) are block ids, `positions` (rows,) those of the new tokens.
    """

    tables: torch.Tensor
    positions: torch.Tensor
    shortest: int
    longest: int
    views: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `Part`. The query heads that share a KV head become the "tokens" of it, so no key is
        repeated.
        """
        num_rows, num_heads, head_dim = query.shape
        num_kv_heads = keys.shape[1]
        window = options.window_tokens
        slots, mask = self._view(self.longest if window is None else min(window, self.longest))
        attended = scaled_dot_product_attention(
            query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim),
            _gather(keys, slots),
            _gather(values, slots),
            attn_mask=mask,
            scale=options.scale,
        )
        return attended.reshape(num_rows, num_heads, values.shape[2])

    def _view(self, width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The last `width` tokens of each row; of shorter rows all, then their first once more and
        a mask over these. Shapes: slots (rows, width), mask (rows, 1, 1, width) bool.
        """
        view = self.views.get(width)
        if view is None:
            starts = (self.positions + 1 - width).clamp(min=0)[:, None]
            seen = starts + torch.arange(width, device=starts.device)
            own = seen <= self.positions[:, None]
            slots = slots_at(self.tables, torch.where(own, seen, starts))
            view = slots, None if self.shortest >= width else own[:, None, None, :]
            self.views[width] = view
        return view


def slots_at(tables: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Shapes: tables (rows, blocks), positions (rows, n); returns (rows, n)."""
    return tables.gather(1, positions // BLOCK_TOKENS) * BLOCK_TOKENS + positions % BLOCK_TOKENS


def _gather(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Shapes: pool (slots, heads, dim), slots (rows, n); returns (rows, heads, n, dim)."""
    gathered = pool.index_select(0, slots.flatten())
    return gathered.view(*slots.shape, *pool.shape[1:]).transpose(1, 2)
