"""Attention over a packed ragged batch, registered with transformers under the name "headrace".

A step's tokens lie one row after the other in a single sequence of batch size 1. Each layer hands
its queries, keys and values here; the step's `StepRows` (a forward keyword argument) say which
tokens belong to which row. Causal attention, grouped heads and sliding windows are done; soft caps,
attention sinks and position biases are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from headrace.models.kv_cache import LayerShape, RowCache

ATTENTION_NAME = "headrace"
STEP_KWARG = "headrace_step"

_UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias", "block_sequence_ids")


class UnsupportedModelError(Exception):
    """The model's attention needs something that this engine does not do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"this model cannot be served: {self.reason}"


class AttentionStep(Protocol):
    """What the attention of one step does in one layer."""

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: "AttentionOptions",
    ) -> torch.Tensor:
        """Shapes: query, key, value (1, heads, tokens, dim); returns (1, tokens, query heads, value
        dim).
        """


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How a layer attends: the factor on the scores (None: 1/sqrt(dim)), and how many of the last
    tokens it sees.
    """

    scale: float | None
    window_tokens: int | None


@dataclass(slots=True)
class RowSlice:
    """The tokens of one row in the packed sequence: [start, start + num_tokens)."""

    cache: RowCache
    start: int
    num_tokens: int
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRows:
    """One step over real rows: writes each row's cache and attends to it."""

    rows: Sequence[RowSlice]

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionStep`."""
        output = query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))
        for row in self.rows:
            end = row.start + row.num_tokens
            keys, values = row.cache.write(
                layer_index, key[:, :, row.start : end], value[:, :, row.start : end]
            )
            attended = _attend_row(row, query[:, :, row.start : end], keys, values, options)
            output[:, row.start : end] = attended.transpose(1, 2)
        return output


@dataclass(slots=True)
class ProbeStep:
    """A step that only notes the KV shape of each layer; run once when a model is loaded."""

    layers: dict[int, LayerShape] = field(default_factory=dict)
    windowed: set[int] = field(default_factory=set)
    dtype: torch.dtype | None = None

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionStep`; what it returns has the right shape only."""
        self.layers[layer_index] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        self.dtype = key.dtype
        if options.window_tokens is not None:
            self.windowed.add(layer_index)
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))


def register_attention() -> None:
    """Make transformers know the attention function; calling it again changes nothing.

    transformers builds no mask for it, as there is none registered under its name.
    """
    AttentionInterface.register(ATTENTION_NAME, _attention_forward)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The signature that transformers calls. Shapes: see `AttentionStep`."""
    step: AttentionStep | None = kwargs.get(STEP_KWARG)
    if step is None:
        raise UnsupportedModelError("its layers do not hand forward arguments on to the attention")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"its attention needs {name}")
    if attention_mask is not None or not getattr(module, "is_causal", True):
        raise UnsupportedModelError("its attention is not plainly causal")
    options = AttentionOptions(scaling, sliding_window)
    return step.attend(int(module.layer_idx), query, key, value, options), None  # type: ignore[arg-type]


def _attend_row(
    row: RowSlice,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attention of one row's new tokens over its whole cache. Shapes: all (1, heads, tokens,
    dim).
    """
    if row.num_tokens == 1:
        return _attend_one(query, keys, values, options)
    grouped = query.shape[1] != keys.shape[1]
    from_start = row.cache.length == 0
    if from_start and (options.window_tokens is None or row.num_tokens <= options.window_tokens):
        return scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=options.scale, enable_gqa=grouped
        )
    mask = row.masks.get(options.window_tokens)
    if mask is None:
        mask = _chunk_mask(row, options.window_tokens, query.device)
        row.masks[options.window_tokens] = mask
    return scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=options.scale, enable_gqa=grouped
    )


def _attend_one(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """One new token: the query heads that share a KV head become the "tokens" of it, so no key is
    repeated.
    """
    if options.window_tokens is not None:
        keys, values = keys[:, :, -options.window_tokens :], values[:, :, -options.window_tokens :]
    num_heads, head_dim = query.shape[1], query.shape[3]
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = scaled_dot_product_attention(grouped, keys, values, scale=options.scale)
    return attended.reshape(1, num_heads, 1, values.shape[3])


def _chunk_mask(row: RowSlice, window_tokens: int | None, device: torch.device) -> torch.Tensor:
    """Which cached token each new token sees. Shapes: (new tokens, cached and new tokens) bool."""
    first = row.cache.length
    query_positions = torch.arange(first, first + row.num_tokens, device=device)[:, None]
    key_positions = torch.arange(first + row.num_tokens, device=device)[None, :]
    mask = key_positions <= query_positions
    if window_tokens is not None:
        mask &= key_positions > query_positions - window_tokens
    return mask
