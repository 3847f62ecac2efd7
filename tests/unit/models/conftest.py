"""The tiny model, loaded once, as we run it and as transformers runs it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.models.batch import StepRunner
from headrace.models.loading import LoadedModel, load_model
from headrace.models.text import Detokenizer
from tests.tiny_model import make_tiny_tokenizer
from tests.unit.models.engine_run import (
    POOL_BLOCKS,
    EngineRun,
    Generate,
    MakeRunner,
    make_cuda_runner,
    make_native_runner,
    make_torch_runner,
)


@pytest.fixture(scope="session")
def tiny_model(tiny_model_dir: Path) -> LoadedModel:
    """The tiny model in float32 on the CPU, left to transformers."""
    return load_model(tiny_model_dir, dtype="float32", device="cpu", native=False)


@pytest.fixture(scope="session")
def reference_greedy(tiny_model_dir: Path) -> Generate:
    """The oracle: `model.generate` of transformers, one prompt at a time, greedy."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, attn_implementation="sdpa")

    def generate(prompt_ids: list[int], num_tokens: int) -> list[int]:
        output = model.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
        generated: list[int] = output[0, len(prompt_ids) :].tolist()
        return generated

    return generate


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """The tiny model's tokenizer."""
    return make_tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_detokenizer(tiny_tokenizer: Any) -> Detokenizer:
    """The detokenizer of the tiny model."""
    return Detokenizer(tiny_tokenizer)


RUNNERS: dict[str, MakeRunner] = {"torch": make_torch_runner, "native": make_native_runner}
if torch.cuda.is_available():
    RUNNERS["cuda"] = make_cuda_runner


@pytest.fixture(params=list(RUNNERS.values()), ids=list(RUNNERS))
def make_runner(request: pytest.FixtureRequest) -> MakeRunner:
    """Each kind of runner that the engine has to work with."""
    make: MakeRunner = request.param
    return make


@pytest.fixture
def make_engine(
    tiny_model: LoadedModel, make_runner: MakeRunner
) -> Iterator[Callable[..., EngineRun]]:
    """Makes engines of the tiny model and stops them at the end of the test."""
    runs: list[EngineRun] = []

    def make(
        *, runner: StepRunner | None = None, num_blocks: int = POOL_BLOCKS, **options: Any
    ) -> EngineRun:
        runner = runner or make_runner(tiny_model, num_blocks=num_blocks)
        runs.append(EngineRun(tiny_model, runner, **options))
        return runs[-1]

    yield make
    for run in runs:
        run.engine.stop()
