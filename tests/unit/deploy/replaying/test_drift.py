"""Whether two answers part at a near tie, asked of a real, tiny model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.comparison import Outcome, Parting, Reason, Verdict
from headrace.deploy.replaying.drift import CandidateModel
from headrace.deploy.replaying.judging import Row
from headrace.models.near_choice import DRIFT_LOGITS
from headrace.schemas.settings import Settings
from tests.replayed_answers import answer, request

PROMPT = [5, 60, 70]
COMMON = [100, 101]
PARTED = Verdict(Outcome.DIFFERENT, Reason.TOKENS, parting=Parting(len(COMMON), "", ""))


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> CandidateModel:
    return CandidateModel(Settings(model=str(tiny_model_dir)))


@pytest.fixture(scope="module")
def best(tiny_model_dir: Path) -> tuple[int, int, float]:
    """The two likeliest tokens behind PROMPT and COMMON, and how far apart their logits are."""
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPT + COMMON])).logits[0, -1]
    top = torch.topk(logits, 2)
    first, second = top.indices.tolist()
    return first, second, float(top.values[0] - top.values[1])


def made(model: CandidateModel, ids: list[int], *, with_ids: bool = True) -> Answer:
    found = answer(ids, fingerprint="f" if with_ids else "g")
    found.texts = model.texts_of(ids)
    found.ids = ids if with_ids else None
    found.prompt_ids = PROMPT
    return found


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize(("gap", "expected"), [(0.5, True), (-0.5, True), (2.0, False)])
def test_greedy(
    model: CandidateModel,
    best: tuple[int, int, float],
    gap: float,
    expected: bool,
    with_ids: bool,
) -> None:
    """A bias brings the second token to within the tolerance, in parts of it, or leaves it out."""
    first, second, apart = best
    bias = {str(second): apart - gap * DRIFT_LOGITS}
    row = Row(
        request(temperature=0, logit_bias=bias),
        made(model, [*COMMON, second, 7], with_ids=with_ids),
        made(model, [*COMMON, first, 8]),
        PARTED,
    )
    found = model.drift_of(row)
    assert (found is not None) is expected
    assert found in (None, f"logit gap {abs(gap) * DRIFT_LOGITS:.4f}")


def test_a_token_that_the_model_would_not_choose_is_no_drift(
    model: CandidateModel, best: tuple[int, int, float]
) -> None:
    """Then the candidate's engine is wrong, whatever was recorded."""
    first, second, _ = best
    asked = request(temperature=0)
    recorded = made(model, [*COMMON, first, 7])
    found = model.drift_of(Row(asked, recorded, made(model, [*COMMON, second, 8]), PARTED))
    assert found is None


def test_without_the_prompt_nothing_can_be_said(model: CandidateModel) -> None:
    """Such an answer is different."""
    answered = made(model, [*COMMON, 7])
    answered.prompt_ids = None
    assert model.drift_of(Row(request(), made(model, [*COMMON, 8]), answered, PARTED)) is None


def test_texts_are_whole_characters(model: CandidateModel, tiny_model_dir: Path) -> None:
    """Those of three bytes come with their last one."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model_dir)
    ids = tokenizer("ab € 😀")["input_ids"]
    texts = model.texts_of(ids)
    assert "".join(texts) == "ab € 😀"
    assert "\ufffd" not in "".join(texts)
