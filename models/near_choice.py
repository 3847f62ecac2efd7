"""Whether rounding may have chosen another token than the one that was sampled.

Owns the tolerances. A pure function of the logits; does not know who computed them.
"""

import torch

from headrace.models.sampler import (
    SampleRow,
    is_greedy,
    probabilities_of,
    scores_of,
    uniform,
)

DRIFT_LOGITS = 0.25
"""How far rounding may move the difference of two logits. bfloat16 has 8 bits: between 16 and 32,
where the highest logits lie, its neighbours are 0.125 apart, and both logits may be off by one."""

DRIFT_UNIFORM = 0.02
"""How far rounding may move the border between two tokens on the scale of [0, 1) that a draw falls
on. Independent errors of 0.1 in each of 49,152 logits moved the border that moved most by 0.003 to
0.014 on average, by 0.03 in the worst of 80 random distributions (temperature 1)."""


def near_tokens(logits: torch.Tensor, row: SampleRow) -> list[int]:
    """The tokens that rounding might have chosen for `row`, the likeliest first.

    Shapes: logits (vocabulary,), left unchanged.
    """
    scores = scores_of(logits, row)
    if is_greedy(row.params):
        is_near = scores >= scores.max() - DRIFT_LOGITS
    else:
        is_near = _near_the_draw(scores, row)
    found = is_near.nonzero()[:, 0]
    order = torch.argsort(scores[found], descending=True, stable=True)
    tokens: list[int] = found[order].tolist()
    return tokens


def margin_text(logits: torch.Tensor, row: SampleRow, one: int, other: int) -> str:
    """How near two tokens are to a choice between them, in words for people.

    Shapes: logits (vocabulary,), left unchanged.
    """
    scores = scores_of(logits, row)
    if is_greedy(row.params):
        return f"logit gap {abs(float(scores[one] - scores[other])):.4f}"
    begins, ends = _pieces(probabilities_of(scores, row.params))
    drawn = uniform(row.params.seed, len(row.generated_ids))
    away = max(float(max(begins[i] - drawn, drawn - ends[i])) for i in (one, other))
    return f"draw {drawn:.4f}, {max(0.0, away):.4f} away"


def _near_the_draw(scores: torch.Tensor, row: SampleRow) -> torch.Tensor:
    """Those whose piece of the cumulative distribution lies within reach of the draw."""
    probabilities = probabilities_of(scores, row.params)
    begins, ends = _pieces(probabilities)
    drawn = uniform(row.params.seed, len(row.generated_ids))
    within = (begins - DRIFT_UNIFORM <= drawn) & (drawn < ends + DRIFT_UNIFORM)
    return within & (probabilities > 0)


def _pieces(probabilities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each token's piece of [0, 1) begins and ends."""
    ends = torch.cumsum(probabilities, dim=-1)
    total = ends[-1].clone()
    return (ends - probabilities) / total, ends / total
