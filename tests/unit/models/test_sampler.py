"""Choosing tokens: greedy, seeded, penalised and cut distributions, and bad logits."""

import math
from typing import Any

import pytest
import torch

from headrace.models.request import SamplingParams
from headrace.models.sampler import SampleRow, sample, uniform

VOCAB = 16


def choose(logits: list[float], *, generated: int = 0, **params: Any) -> int:
    """The token of one row that has generated `generated` tokens (the id 0 each time)."""
    row = SampleRow(SamplingParams(**params), [1], [0] * generated)
    (token,) = sample(torch.tensor([logits]), [row])
    assert isinstance(token, int)
    return token


def draw_many(logits: list[float], num_draws: int = 2000, **params: Any) -> dict[int, float]:
    """How often each token is drawn, over as many seeds."""
    rows = [SampleRow(SamplingParams(seed=seed, **params), [1], []) for seed in range(num_draws)]
    drawn = sample(torch.tensor([logits] * num_draws), rows)
    return {token: drawn.count(token) / num_draws for token in set(drawn) if isinstance(token, int)}


def test_uniform_is_uniform_and_repeatable() -> None:
    """Over positions and over seeds, also negative ones: mean 1/2, variance 1/12, never 1."""
    for values in (
        [uniform(3, position) for position in range(4000)],
        [uniform(seed, 0) for seed in range(-2000, 2000)],
    ):
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        assert mean == pytest.approx(1 / 2, abs=0.02)
        assert variance == pytest.approx(1 / 12, abs=0.005)
        assert 0.0 <= min(values) <= max(values) < 1.0
    assert uniform(-(2**63), 5) == uniform(-(2**63), 5) != uniform(2**63 - 1, 5)


def test_uniform_never_changes() -> None:
    """A resumption on a newer version has to draw the same numbers: these are fixed for ever."""
    assert [uniform(0, 0), uniform(-1, 7)] == [0.0564663990004608, 0.9622429077364113]


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    """They neither overflow nor sample."""
    assert choose([0.0, 5.0, 4.999], temperature=temperature) == 1


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}])
def test_ties_go_to_the_lowest_id(params: dict[str, Any]) -> None:
    """Whichever way leaves one token of equal ones."""
    assert choose([1.0, 7.0, 7.0, 7.0], **params) == 1


def test_frequencies_follow_the_softmax() -> None:
    """Drawn with many seeds, tokens come as often as the temperature's softmax says."""
    logits = [0.0, 1.0, 2.0]
    weights = [math.exp(logit / 0.7) for logit in logits]
    frequencies = draw_many(logits, temperature=0.7)
    for token, weight in enumerate(weights):
        assert frequencies[token] == pytest.approx(weight / sum(weights), abs=0.04)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {2, 3}),
        ({"top_k": 10**9}, {0, 1, 2, 3}),
        ({"top_p": 0.6}, {3}),
        ({"top_p": 0.7}, {2, 3}),
        ({"min_p": 0.3}, {2, 3}),
        ({"min_p": 1.0}, {3}),
        ({"top_k": 3, "top_p": 0.9}, {2, 3}),
        ({"min_p": 0.1, "top_p": 0.9}, {2, 3}),
    ],
)
def test_cuts_keep_the_most_likely(params: dict[str, Any], kept: set[int]) -> None:
    """Probabilities here: 0.032, 0.087, 0.237, 0.644."""
    assert set(draw_many([0.0, 1.0, 2.0, 3.0], **params)) == kept


def test_the_token_is_a_function_of_seed_and_position() -> None:
    """Equal seed and position: equal token, whatever stands beside; another position: another."""
    logits = [0.0] * VOCAB
    alone = [choose(logits, seed=11, generated=position) for position in range(20)]
    rows = [SampleRow(SamplingParams(seed=11), [1], [0] * position) for position in range(20)]
    assert sample(torch.zeros(20, VOCAB), rows) == alone
    assert len(set(alone)) > 5


def test_penalties() -> None:
    """Repetition counts the prompt too; presence and frequency count the answer only."""
    logits = [2.0, 3.0, 2.5, 0.0]
    greedy: dict[str, Any] = {"temperature": 0.0}
    assert choose(logits, **greedy) == 1
    assert choose(logits, **greedy, repetition_penalty=1.3) == 2  # 1 stands in the prompt
    assert choose(logits, **greedy, presence_penalty=2.0) == 1
    assert choose([3.2, 3.0], generated=3, **greedy, presence_penalty=0.1) == 0
    assert choose([3.2, 3.0], generated=3, **greedy, frequency_penalty=0.1) == 1
    assert choose([3.2, 3.0], generated=1, **greedy, presence_penalty=0.3) == 1


def test_logit_bias() -> None:
    """It adds to the logits, before anything else."""
    assert choose([5.0, 0.0], temperature=0.0, logit_bias={1: 100.0}) == 1
    assert set(draw_many([5.0, 4.0, 3.0], logit_bias={0: -100.0})) == {1, 2}


@pytest.mark.parametrize("penalty", [1e-45, 1e-30, 10.0])
def test_extreme_penalties_stay_finite(penalty: float) -> None:
    """Dividing by almost nothing must not give NaN."""
    assert choose([2.0, -3.0, 4.0], generated=2, repetition_penalty=penalty) in {0, 1, 2}


def test_logits_are_left_unchanged() -> None:
    """Penalties and biases work on a copy."""
    logits = torch.ones(1, VOCAB)
    sample(logits, [SampleRow(SamplingParams(logit_bias={1: 5.0}), [1], [2])])
    assert torch.equal(logits, torch.ones(1, VOCAB))
