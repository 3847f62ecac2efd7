"""Headrace's engine: the one place where the benchmarks build it, and its runs, timed."""

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import transformers

from benchmarks.lib.child import Config, Measured, Run, serve
from benchmarks.lib.linear_steps import STEP_TOKENS
from headrace.models.engine import TransformersEngine
from headrace.models.loading import LoadedModel, load_model, make_runner
from headrace.models.request import EngineOutput, EngineRequest, SamplingParams

BATCH_WINDOW_MS = 5.0
KV_POOL_BYTES = 2 << 30
STALL_S = 300.0

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def build_engine(
    loaded: LoadedModel,
    *,
    on_outputs: Callable[[list[EngineOutput]], None],
    max_batch_size: int,
    prefix_caching: bool,
    kv_pool_bytes: int = KV_POOL_BYTES,
) -> TransformersEngine:
    """An engine as a worker makes it; not started."""
    return TransformersEngine(
        loaded,
        runner=make_runner(
            loaded,
            kv_pool_bytes=kv_pool_bytes,
            max_batch_size=max_batch_size,
            max_batch_tokens=STEP_TOKENS,
        ),
        max_batch_size=max_batch_size,
        max_batch_tokens=STEP_TOKENS,
        batch_window_ms=BATCH_WINDOW_MS,
        on_outputs=on_outputs,
        prefix_caching=prefix_caching,
    )


@dataclass(frozen=True)
class TimedRun:
    """The tokens of a run and when they came, by request, and how much of the prompts was not
    computed.

    Units: `time.monotonic()`; tokens, of all requests together.
    """

    started_s: float
    token_ids: list[list[int]]
    times_s: list[list[float]]
    cached_tokens: int
    fetched_tokens: int


class TimedEngine:
    """A started engine, and when the tokens of the requests given to it came."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_batch_size: int = 64,
        prefix_caching: bool = False,
        kv_pool_bytes: int = KV_POOL_BYTES,
    ) -> None:
        self._arrivals: queue.SimpleQueue[tuple[float, list[EngineOutput]]] = queue.SimpleQueue()
        self.engine = build_engine(
            loaded,
            on_outputs=lambda outputs: self._arrivals.put((time.monotonic(), outputs)),
            max_batch_size=max_batch_size,
            prefix_caching=prefix_caching,
            kv_pool_bytes=kv_pool_bytes,
        )
        self.engine.start()

    def run(self, requests: Sequence[EngineRequest]) -> TimedRun:
        """Add all requests, wait for all to end.

        Raises: the EngineError of a request that failed; queue.Empty if the engine stalls.
        """
        token_ids: dict[str, list[int]] = {request.key: [] for request in requests}
        times_s: dict[str, list[float]] = {request.key: [] for request in requests}
        started_s = time.monotonic()
        self.engine.expect(len(requests))
        for request in requests:
            self.engine.add(request)
        self.engine.expect(-len(requests))
        cached_tokens = fetched_tokens = 0
        num_open = len(requests)
        while num_open:
            arrived_s, outputs = self._arrivals.get(timeout=STALL_S)
            for output in outputs:
                if output.error is not None:
                    raise output.error
                token_ids[output.key] += output.token_ids
                times_s[output.key] += [arrived_s] * len(output.token_ids)
                if output.is_last:
                    num_open -= 1
                    cached_tokens += output.cached_tokens
                    fetched_tokens += output.fetched_tokens
        return TimedRun(
            started_s,
            list(token_ids.values()),
            list(times_s.values()),
            cached_tokens,
            fetched_tokens,
        )


def greedy_requests(prompts: Sequence[list[int]], new_tokens: int) -> list[EngineRequest]:
    """One request for each prompt, named by its place."""
    return [
        EngineRequest(str(index), list(prompt), new_tokens, sampling=GREEDY)
        for index, prompt in enumerate(prompts)
    ]


class HeadraceEngine(Measured):
    """The engine as one of the measured ones, with its native steps or with torch's."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config["threads"])
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        loaded = load_model(
            config["model"], dtype=config["dtype"], device="cpu", native=config["native"]
        )
        self._timed = TimedEngine(
            loaded,
            max_batch_size=config["max_batch_size"],
            prefix_caching=config["prefix_cache"],
        )

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """All requests at once; the text is made too, as a worker needs it."""
        done = self._timed.run(greedy_requests(prompts, new_tokens))
        relative_s = [[at_s - done.started_s for at_s in row] for row in done.times_s]
        num_tokens = sum(map(len, relative_s))
        return Run(max(row[-1] for row in relative_s), num_tokens, relative_s)


if __name__ == "__main__":
    serve(HeadraceEngine)
