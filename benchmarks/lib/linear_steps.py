"""The linear-layer work that a run cannot avoid, step by step: counts, no tensors."""

from dataclasses import dataclass

STEP_TOKENS = 512
"""Rows of a prefill step, for the limit and as every engine's budget of tokens per step."""


@dataclass(frozen=True)
class LinearStep:
    """Rows that go through a layer's matrices, and rows whose logits are needed."""

    rows: int
    logits_rows: int


@dataclass(frozen=True)
class LinearShape:
    """One weight matrix as (out, in) features."""

    out_features: int
    in_features: int


@dataclass(frozen=True)
class ModelShapes:
    """The matrices of a Llama-like model, q/k/v and gate/up as one each."""

    layer: tuple[LinearShape, ...]
    num_layers: int
    head: LinearShape


def prefill_steps(batch: int, prompt_tokens: int, step_tokens: int) -> list[LinearStep]:
    """All prompts back to back, cut into steps of `step_tokens` rows."""
    total = batch * prompt_tokens
    starts = range(0, total, step_tokens)
    ends = [min(start + step_tokens, total) for start in starts]
    return [
        LinearStep(end - start, end // prompt_tokens - start // prompt_tokens)
        for start, end in zip(starts, ends, strict=True)
    ]


def decode_steps(batch: int, new_tokens: int) -> list[LinearStep]:
    """One row per request and step; the first token came from the prefill."""
    return [LinearStep(batch, batch)] * (new_tokens - 1)


def model_shapes(
    *,
    hidden: int,
    intermediate: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    vocab: int,
) -> ModelShapes:
    """Shapes from the numbers of a config."""
    return ModelShapes(
        layer=(
            LinearShape((num_heads + 2 * num_kv_heads) * head_dim, hidden),
            LinearShape(hidden, num_heads * head_dim),
            LinearShape(2 * intermediate, hidden),
            LinearShape(hidden, intermediate),
        ),
        num_layers=num_layers,
        head=LinearShape(vocab, hidden),
    )
