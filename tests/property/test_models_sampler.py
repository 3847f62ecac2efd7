"""The sampler's quick selection equals plainly sorting everything, alone and in any batch."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.models.request import SamplingParams
from headrace.models.sampler import SampleRow, sample, uniform

VOCAB = 3000  # more than the quick selection looks at first


def plain_choice(logits: torch.Tensor, params: SamplingParams) -> int:
    """Softmax, sort, cut, inverse CDF in the order of ids; equal ones rank by id."""
    weights = torch.softmax(logits.to(torch.float64) / params.temperature, dim=-1).tolist()
    floor = params.min_p * max(weights)
    weights = [weight if weight >= floor else 0.0 for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    ranked = ranked[: params.top_k or len(ranked)]
    wanted, mass = params.top_p * sum(weights[token] for token in ranked), 0.0
    kept = []
    for token in ranked:
        if params.top_p < 1.0 and mass >= wanted:
            break
        kept.append(token)
        mass += weights[token]
    target, below = uniform(params.seed, 0) * mass, 0.0
    for token in sorted(kept):
        below += weights[token]
        if below > target:
            return token
    return max(token for token in kept if weights[token] > 0)


@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.01, 1.0, 8.0]),
    levels=st.sampled_from([2, 50, 10**6]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 40, 2999, 5000]),
    top_p=st.sampled_from([0.1003, 0.4997, 0.9517, 1.0]),  # never a whole number of equal ones
    min_p=st.sampled_from([0.0, 0.05]),
)
def test_selection_equals_sorting(
    seed: int,
    spread: float,
    levels: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> None:
    """Flat and sharp distributions, with many ties and with none."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(levels, (VOCAB,), generator=generator)
    logits = steps.to(torch.float32) * (spread / levels)
    params = SamplingParams(
        seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    chosen = sample(logits[None], [SampleRow(params, [0], [])])
    assert chosen == [plain_choice(logits, params)]


PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 0.0},
    {"temperature": 0.0, "presence_penalty": 0.5},
    {"top_p": 0.9},
    {"top_k": 40, "temperature": 0.7},
    {"min_p": 0.05, "repetition_penalty": 1.3},
    {"logit_bias": {3: 9.0}},
]


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from([257, 1000, 4099]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kinds=st.lists(st.sampled_from(PARAMS), min_size=2, max_size=40),
)
def test_a_row_gets_the_same_token_alone_and_in_any_batch(
    seed: int, vocab_size: int, dtype: torch.dtype, kinds: list[dict[str, Any]]
) -> None:
    """Many rows are worked on at once: the others, and their number, must not matter."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(kinds), vocab_size, generator=generator).to(dtype)
    rows = [
        SampleRow(SamplingParams(seed=seed + at, **kind), [1, 2], [3] * at)
        for at, kind in enumerate(kinds)
    ]
    alone = [sample(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)]
    assert sample(logits, rows) == alone
    assert sample(logits.flip(0), rows[::-1]) == alone[::-1]
