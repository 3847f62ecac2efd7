"""The attention function that is registered with transformers under the name "headrace".

A step's tokens lie one row after the other in a single sequence of batch size 1. Each layer hands
its queries, keys and values here, and they go on to the step's `AttentionStep` (a forward keyword
argument), which knows the rows. Causal attention, grouped heads and sliding windows are done; soft
caps, attention sinks and position biases are refused.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from headrace.models.kv_cache import LayerShape

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
