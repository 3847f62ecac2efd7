"""Prompts of an exact length that share nothing."""

import pytest

from benchmarks.lib.workload import PromptMaker
from headrace.models.batch import BLOCK_TOKENS
from tests.tiny_model import make_tiny_tokenizer

WORDS = [f"Ġword{letter * 3}" for letter in "abcdefgh"]


@pytest.fixture
def maker() -> PromptMaker:
    tokenizer = make_tiny_tokenizer()
    tokenizer.add_tokens(WORDS)
    return PromptMaker(tokenizer)


def test_prompts_have_exactly_the_tokens_asked_for(maker: PromptMaker) -> None:
    """Figures are per token, so a prompt is not about so long."""
    assert {100} == {len(prompt) for prompt in maker.prompts(8, 100, seed="a")}


def test_no_two_prompts_share_a_block(maker: PromptMaker) -> None:
    """A prefix cache finds nothing in prompts that it has not seen."""
    prompts = maker.prompts(8, 100, seed="a") + maker.prompts(8, 100, seed="b")
    assert len({tuple(prompt[:BLOCK_TOKENS]) for prompt in prompts}) == 16


def test_a_seed_stands_for_its_prompts(maker: PromptMaker) -> None:
    """All engines get the same prompts, in this run and in the next."""
    assert maker.prompts(2, 100, seed="a") == maker.prompts(2, 100, seed="a")


def test_a_prompt_shorter_than_its_template_is_refused(maker: PromptMaker) -> None:
    """Rather an error than a prompt of another length."""
    with pytest.raises(ValueError, match="a chat prompt needs"):
        maker.prompts(1, 10, seed="a")
