"""300 mixed requests at once, in every way that the engine may take: the tokens are those that the
plain model chooses.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.models.loading import LoadedModel, load_model
from headrace.models.prefix import block_hashes
from headrace.models.request import EngineRequest, KVBlock, SamplingParams
from tests.tiny_model import make_tiny_model
from tests.unit.models.engine_run import WAIT_S, EngineRun, MakeRunner

NUM_REQUESTS = 300
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
POOL_BLOCKS = 52  # just enough for the longest
SETTINGS: dict[str, Any] = {"max_batch_size": 24, "max_batch_tokens": 700}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("long-model"), max_position_embeddings=2048)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, dtype="float32", device="cpu", native=False)


@pytest.fixture(scope="module")
def check_greedy(folder: Path) -> Callable[[list[int], list[int]], None]:
    """Each token is the plain model's choice after all before it, as in `model.generate`."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")

    @torch.inference_mode()
    def check(prompt_ids: list[int], answer_ids: list[int]) -> None:
        known = torch.tensor([[*prompt_ids, *answer_ids[:-1]]])
        logits = model(known, logits_to_keep=len(answer_ids), use_cache=False).logits[0]
        assert logits.argmax(dim=-1).tolist() == answer_ids

    return check


def mixed_requests() -> list[EngineRequest]:
    """1 to 1,500 tokens, mostly short, a third with a common beginning."""
    rng = random.Random(4)
    common = [rng.randrange(3, 500) for _ in range(1500)]
    requests = []
    for index in range(NUM_REQUESTS):
        length = min(int(rng.lognormvariate(4, 1.4)) + 1, 1500)
        own = [rng.randrange(3, 500) for _ in range(length)]
        shared = rng.randrange(length) if index % 3 == 0 else 0
        prompt_ids = [*common[:shared], *own[shared:]]
        requests.append(
            EngineRequest(
                str(index), prompt_ids, 1 + index % 120, sampling=GREEDY, priority=index % 2
            )
        )
    return requests


@pytest.mark.timeout(180)
def test_300_mixed_requests(
    loaded: LoadedModel,
    make_runner: MakeRunner,
    check_greedy: Callable[[list[int], list[int]], None],
) -> None:
    """In batches with preemption, eviction and hits; then resumed half-way on another engine with
    blocks of the first.
    """
    requests = mixed_requests()
    assert max(len(one.prompt_ids) for one in requests) == 1500
    first = EngineRun(loaded, make_runner(loaded, num_blocks=POOL_BLOCKS), **SETTINGS)
    answers = first.run(*requests)
    for one in requests:
        check_greedy(one.prompt_ids, answers[one.key].token_ids)
    counters = first.engine.counters
    assert counters.num_preemptions > 0
    assert counters.num_evictions > 0
    assert counters.prefix_local_hit_tokens > 0
    assert first.engine.kv_usage == 0.0
    resumed = []
    for one in requests[::3]:
        half = answers[one.key].token_ids[: one.max_tokens // 2]
        names = block_hashes([*one.prompt_ids, *half], salt=first.engine.salt("default"))
        blocks = first.engine.export_blocks(names).result(timeout=WAIT_S)
        there: list[KVBlock] = [block for block in blocks if block is not None]
        resumed.append(
            EngineRequest(
                one.key,
                one.prompt_ids,
                one.max_tokens,
                generated_ids=half,
                sampling=GREEDY,
                kv_blocks=there,
            )
        )
    first.engine.stop()
    second = EngineRun(loaded, make_runner(loaded, num_blocks=POOL_BLOCKS), **SETTINGS)
    rest = second.run(*resumed)
    second.engine.stop()
    for one in resumed:
        whole = [*one.generated_ids, *rest[one.key].token_ids]
        assert whole == answers[one.key].token_ids
    assert second.engine.counters.prefix_fetched_hit_tokens > 0
