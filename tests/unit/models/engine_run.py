"""Drives a real engine in tests: adds requests, collects outputs, and waits without sleeping."""

import queue
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from headrace.models.batch import StepRunner
from headrace.models.engine import TransformersEngine
from headrace.models.loading import LoadedModel
from headrace.models.native.convert import convert
from headrace.models.native.runner import NativeRunner
from headrace.models.request import EngineError, EngineOutput, EngineRequest, FinishReason
from headrace.models.runner import TorchRunner

WAIT_S = 10.0

POOL_BLOCKS = 256

MakeRunner = Callable[..., StepRunner]
"""Makes a runner of a `LoadedModel` with `num_blocks` KV blocks."""


def make_torch_runner(loaded: LoadedModel, *, num_blocks: int = POOL_BLOCKS) -> StepRunner:
    """The generic runner."""
    pool_bytes = num_blocks * loaded.layout.kv_format.block_bytes
    return TorchRunner(loaded.model, loaded.layout, kv_pool_bytes=pool_bytes)


def make_cuda_runner(loaded: LoadedModel, *, num_blocks: int = POOL_BLOCKS) -> StepRunner:
    """The generic runner on a GPU, with CUDA graphs."""
    device = torch.device("cuda")
    model, layout = deepcopy(loaded.model).to(device), replace(loaded.layout, device=device)
    return TorchRunner(model, layout, kv_pool_bytes=num_blocks * layout.kv_format.block_bytes)


def make_native_runner(loaded: LoadedModel, *, num_blocks: int = POOL_BLOCKS) -> StepRunner:
    """The one for Llama-like models on CPUs."""
    decoder = convert(loaded.model, loaded.max_model_len, num_threads=2)
    pool_bytes = num_blocks * decoder.shape.block_bytes
    return NativeRunner(decoder, kv_pool_bytes=pool_bytes, max_tokens=2048, max_rows=64)


@dataclass
class Answer:
    """All that came for one request."""

    token_ids: list[int] = field(default_factory=list)
    deltas: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: EngineError | None = None
    num_last: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def take(self, output: EngineOutput) -> None:
        assert self.num_last == 0, "an output after the last one"
        self.token_ids += output.token_ids
        self.deltas.append(output.text)
        self.finish_reason, self.error = output.finish_reason, output.error
        self.cached_tokens, self.fetched_tokens = output.cached_tokens, output.fetched_tokens
        self.num_last += output.is_last


class EngineRun:
    """An engine and what it has given so far. `engine` starts at once unless `started` is False."""

    def __init__(
        self,
        loaded: LoadedModel,
        runner: StepRunner,
        *,
        started: bool = True,
        on_outputs: Callable[[list[EngineOutput]], None] | None = None,
        **options: Any,
    ) -> None:
        self.outputs: queue.Queue[list[EngineOutput]] = queue.Queue()
        self.deaths: queue.Queue[BaseException] = queue.Queue()
        self.answers: dict[str, Answer] = {}
        settings: dict[str, Any] = {
            "max_batch_size": 8,
            "max_batch_tokens": 64,
            "batch_window_ms": 0.0,
        }
        self.engine = TransformersEngine(
            loaded,
            runner=runner,
            on_outputs=on_outputs or self.outputs.put,
            on_death=self.deaths.put,
            **{**settings, **options},
        )
        if started:
            self.engine.start()

    def add(self, *requests: EngineRequest) -> None:
        """Add requests whose outputs are collected."""
        for request in requests:
            self.answers[request.key] = Answer()
            self.engine.add(request)

    def collect(self) -> list[EngineOutput]:
        """Wait for the outputs of the next step that has some."""
        outputs = self.outputs.get(timeout=WAIT_S)
        for output in outputs:
            self.answers[output.key].take(output)
        return outputs

    def finish(self, *keys: str) -> dict[str, Answer]:
        """Collect until these (or all) requests have ended."""
        wanted = keys or tuple(self.answers)
        while any(self.answers[key].num_last == 0 for key in wanted):
            self.collect()
        return self.answers

    def run(self, *requests: EngineRequest) -> dict[str, Answer]:
        """Add the requests and collect until they have ended."""
        self.add(*requests)
        return self.finish(*(request.key for request in requests))

    def run_one(self, request: EngineRequest) -> Answer:
        """Run one request to its end."""
        return self.run(request)[request.key]


MakeEngine = Callable[..., EngineRun]
"""Makes an engine of the tiny model that is stopped at the end of the test."""

Generate = Callable[[list[int], int], list[int]]
"""The oracle: prompt and number of tokens in, the tokens of `model.generate` out."""
