"""llama.cpp's server, in-process, from an environment of its own (`xllamacpp`).

The model is a GGUF file, BF16 for figures that are to be compared.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.child import Config, Measured, Run, serve

SLOT_TOKENS = 1024


class LlamaEngine(Measured):
    """Its server with one slot per request, asked by one thread per request."""

    def __init__(self, config: Config) -> None:
        import xllamacpp  # type: ignore[import-not-found]

        self.versions = {"xllamacpp": str(xllamacpp.__version__)}
        params = xllamacpp.CommonParams()
        params.model.path = config["model"]
        params.n_parallel = config["max_batch_size"]
        params.n_ctx = SLOT_TOKENS * config["max_batch_size"]
        params.n_batch = params.n_ubatch = config["step_tokens"]
        params.cpuparams.n_threads = config["threads"]
        params.cpuparams_batch.n_threads = config["threads"]
        params.verbosity = -1
        self._prefix_cache: bool = config["prefix_cache"]
        self._server = xllamacpp.Server(params)

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """All requests at once."""
        times_s: list[list[float]] = [[] for _ in prompts]
        num_tokens = [0] * len(prompts)
        started_s = time.perf_counter()

        def ask(index: int) -> None:
            def take(chunk: Any) -> bool:
                now_s = time.perf_counter() - started_s
                for part in chunk if isinstance(chunk, list) else [chunk]:
                    if "timings" in part:
                        num_tokens[index] = part["timings"]["predicted_n"]
                    else:
                        times_s[index].append(now_s)
                return False

            question = {
                "prompt": prompts[index],
                "n_predict": new_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": self._prefix_cache,
                "stream": True,
            }
            self._server.handle_completions(question, take)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Run(time.perf_counter() - started_s, sum(num_tokens), times_s)


if __name__ == "__main__":
    serve(LlamaEngine)
