"""transformers' `generate`: one static batch, the prompts all of one length."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteriaList

from benchmarks.lib.child import Config, Measured, Run, serve


class StaticBatch(Measured):
    """The model with its default attention."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config["threads"])
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self._model = AutoModelForCausalLM.from_pretrained(
            config["model"], dtype=getattr(torch, config["dtype"])
        ).eval()
        self._model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    @torch.inference_mode()
    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """The times are those at which the batch was asked whether it is done."""
        times_s: list[float] = []

        def note(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            times_s.append(time.perf_counter() - started_s)
            return torch.zeros(len(input_ids), dtype=torch.bool)

        started_s = time.perf_counter()
        ids = torch.tensor(list(prompts))
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            stopping_criteria=StoppingCriteriaList([note]),
        )
        wall_s = time.perf_counter() - started_s
        return Run(wall_s, output[:, ids.shape[1] :].numel(), [times_s] * len(prompts))


if __name__ == "__main__":
    serve(StaticBatch)
