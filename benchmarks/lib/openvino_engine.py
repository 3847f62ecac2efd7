"""OpenVINO GenAI's continuous batching, from an environment of its own (`openvino-genai`).

The model is a folder made by `optimum-cli export openvino --weight-format fp16`.
"""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.child import Config, Measured, Run, serve

CACHE_GB = 2


class OpenVinoEngine(Measured):
    """Its paged-attention pipeline, stepped by us so that each token has its time."""

    def __init__(self, config: Config) -> None:
        import openvino_genai as genai  # type: ignore[import-not-found]
        from openvino import Tensor  # type: ignore[import-not-found]

        self._genai, self._tensor = genai, Tensor
        self.versions = {"openvino-genai": str(genai.__version__)}
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = config["step_tokens"]
        scheduler.max_num_seqs = config["max_batch_size"]
        scheduler.enable_prefix_caching = config["prefix_cache"]
        properties = {
            "INFERENCE_NUM_THREADS": config["threads"],
            "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float32": "f32"}[config["dtype"]],
        }
        self._pipeline = genai.ContinuousBatchingPipeline(
            config["model"], scheduler, "CPU", properties
        )
        self._next_id = 0

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """All requests at once."""
        generation = self._genai.GenerationConfig()
        generation.max_new_tokens = new_tokens
        generation.ignore_eos = True
        generation.do_sample = False
        started_s = time.perf_counter()
        handles = [self._add(prompt, generation) for prompt in prompts]
        times_s: list[list[float]] = [[] for _ in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now_s = time.perf_counter() - started_s
            for handle, row in zip(handles, times_s, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        row += [now_s] * len(output.generated_ids)
        wall_s = time.perf_counter() - started_s
        return Run(wall_s, sum(map(len, times_s)), times_s)

    def _add(self, prompt: list[int], generation: Any) -> Any:
        import numpy as np

        self._next_id += 1
        ids = self._tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(self._next_id, ids, generation)


if __name__ == "__main__":
    serve(OpenVinoEngine)
