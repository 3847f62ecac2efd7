"""Which tokens rounding might have chosen in place of the one that was."""

import pytest
import torch

from headrace.models.near_choice import DRIFT_LOGITS, DRIFT_UNIFORM, margin_text, near_tokens
from headrace.models.request import SamplingParams
from headrace.models.sampler import SampleRow, sample, uniform

LOGITS = torch.tensor([1.0, 3.0, 3.0 - DRIFT_LOGITS / 2, -2.0, 3.0 - 2 * DRIFT_LOGITS])


def row(**params: object) -> SampleRow:
    return SampleRow(SamplingParams(**params), [0], [])  # type: ignore[arg-type]


def test_greedy_the_highest_and_those_just_below() -> None:
    """The likeliest first."""
    assert near_tokens(LOGITS, row(temperature=0.0)) == [1, 2]


def test_greedy_with_a_bias() -> None:
    """What counts are the logits that the token was chosen by."""
    assert near_tokens(LOGITS, row(temperature=0.0, logit_bias={0: 2.0, 2: -1.0})) == [0, 1]


@pytest.mark.parametrize("seed", range(40))
def test_the_chosen_token_is_near(seed: int) -> None:
    """Whatever the draw was; and few others are."""
    logits = torch.randn(200, generator=torch.Generator().manual_seed(seed)) * 3
    drawn = row(temperature=1.0, seed=seed, top_p=0.95)
    (chosen,) = sample(logits[None], [drawn])
    near = near_tokens(logits, drawn)
    assert chosen in near
    assert len(near) < 100


def test_drawn_tokens_are_near_where_their_pieces_are() -> None:
    """Four tokens with a quarter of [0, 1) each: the draw's own, and a neighbour that is close."""
    logits = torch.zeros(4)
    for seed in range(200):
        drawn = uniform(seed, 0)
        expected = {
            token
            for token in range(4)
            if token / 4 - DRIFT_UNIFORM <= drawn < (token + 1) / 4 + DRIFT_UNIFORM
        }
        assert set(near_tokens(logits, row(temperature=1.0, seed=seed))) == expected


def test_what_was_cut_off_is_not_near() -> None:
    """Rounding does not bring it back."""
    logits = torch.tensor([0.0, 5.0, 0.0])
    near = {token for seed in range(50) for token in near_tokens(logits, row(top_k=1, seed=seed))}
    assert near == {1}


def test_the_margin_of_a_greedy_choice() -> None:
    """The gap of both logits, whichever is the higher."""
    expected = f"logit gap {DRIFT_LOGITS / 2:.4f}"
    assert margin_text(LOGITS, row(temperature=0.0), 1, 2) == expected
    assert margin_text(LOGITS, row(temperature=0.0), 2, 1) == expected


def test_the_margin_of_a_draw() -> None:
    """The draw, and how far it is from the piece of the token that is further off."""
    drawn = uniform(3, 0)
    own = int(drawn * 4)
    for other in {0, 1, 2, 3} - {own}:
        away = max(other / 4 - drawn, drawn - (other + 1) / 4)
        expected = f"draw {drawn:.4f}, {away:.4f} away"
        assert margin_text(torch.zeros(4), row(temperature=1.0, seed=3), own, other) == expected


def test_the_logits_stay_as_they_are() -> None:
    """They may be shared."""
    before = LOGITS.clone()
    near_tokens(LOGITS, row(temperature=0.0, logit_bias={0: 9.0}, repetition_penalty=1.5))
    assert torch.equal(before, LOGITS)
