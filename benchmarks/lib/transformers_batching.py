"""transformers' continuous batching, with its paged attention over torch's."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.lib.child import Config, Measured, Run, serve

POLL_S = 1.0
KV_TOKENS = 64 * 1024
BLOCK_TOKENS = 256


class ContinuousBatching(Measured):
    """One manager for all runs; its thread runs during a run only."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config["threads"])
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        model = AutoModelForCausalLM.from_pretrained(
            config["model"],
            dtype=getattr(torch, config["dtype"]),
            attn_implementation="paged|sdpa",
        ).eval()
        model.config.eos_token_id = None
        self._manager = model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            ContinuousBatchingConfig(
                block_size=BLOCK_TOKENS,
                num_blocks=KV_TOKENS // BLOCK_TOKENS,
                max_batch_tokens=config["step_tokens"],
                allow_block_sharing=config["prefix_cache"],
            ),
        )

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """All requests at once.

        Raises: RuntimeError if its thread ends or a request fails.
        """
        self._manager.start()
        started_s = time.perf_counter()
        self._manager.add_requests(list(prompts), max_new_tokens=new_tokens, record_timestamps=True)
        results: list[Any] = []
        while len(results) < len(prompts):
            result = self._manager.get_result(timeout=POLL_S)
            if result is None and not self._manager.is_running():
                raise RuntimeError("continuous batching stopped")
            if result is not None and result.error:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                results.append(result)
        wall_s = time.perf_counter() - started_s
        self._manager.stop(block=True)
        num_tokens = sum(len(result.generated_tokens) for result in results)
        times_s = [[at_s - started_s for at_s in result.timestamps] for result in results]
        return Run(wall_s, num_tokens, times_s)


if __name__ == "__main__":
    serve(ContinuousBatching)
