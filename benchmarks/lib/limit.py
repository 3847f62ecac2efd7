"""The limit that engines are judged by: the linear layers of a run alone, in torch.

Plain `F.linear` and weights packed for oneDNN per number of rows, the better of the two for the
prefill and for the decode. Attention, norms, sampling, scheduling and text cost nothing here. It is
torch's limit, not the machine's: a better kernel can pass it.
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from transformers import AutoConfig

from benchmarks.lib.child import Config, Measured, Run, serve
from benchmarks.lib.linear_steps import (
    LinearShape,
    LinearStep,
    decode_steps,
    model_shapes,
    prefill_steps,
)

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Weights = tuple[list[list[torch.Tensor]], torch.Tensor]


def packed_linear(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """A linear layer over a weight that was reordered for oneDNN."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return result


class LinearLimit(Measured):
    """Random weights of the model's shapes, and the time that a run's steps take with them."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config["threads"])
        torch.manual_seed(0)
        self.versions = {"torch": torch.__version__}
        self._dtype = getattr(torch, config["dtype"])
        self._step_tokens: int = config["step_tokens"]
        model = AutoConfig.from_pretrained(config["model"]).get_text_config()
        self._shapes = model_shapes(
            hidden=model.hidden_size,
            intermediate=model.intermediate_size,
            num_layers=model.num_hidden_layers,
            num_heads=model.num_attention_heads,
            num_kv_heads=model.num_key_value_heads,
            head_dim=model.head_dim,
            vocab=model.vocab_size,
        )
        layers = [
            [self._random(s) for s in self._shapes.layer] for _ in range(model.num_hidden_layers)
        ]
        self._plain: Weights = (layers, self._random(self._shapes.head))
        self._packed: dict[LinearStep, Weights] = {}

    @torch.inference_mode()
    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """The best of both kinds for each phase; `detail` has all four."""
        prefill = prefill_steps(len(prompts), len(prompts[0]), self._step_tokens)
        decode = decode_steps(len(prompts), new_tokens)
        self._pack({*prefill, *decode})
        detail = {}
        for phase, steps in (("prefill", prefill), ("decode", decode)):
            detail[f"plain_{phase}_s"] = self._time(steps, F.linear, lambda step: self._plain)
            detail[f"packed_{phase}_s"] = self._time(
                steps, packed_linear, lambda step: self._packed[step]
            )
        wall_s = sum(
            min(detail[f"plain_{phase}_s"], detail[f"packed_{phase}_s"])
            for phase in ("prefill", "decode")
        )
        return Run(wall_s, len(prompts) * new_tokens, detail=detail)

    def _random(self, shape: LinearShape) -> torch.Tensor:
        return torch.randn(shape.out_features, shape.in_features, dtype=self._dtype) * 0.05

    def _pack(self, steps: set[LinearStep]) -> None:
        """Packed weights for these steps and no others; a layout fits a number of rows."""
        pack = torch.ops.mkldnn._reorder_linear_weight
        self._packed = {step: self._packed[step] for step in steps if step in self._packed}
        layers, head = self._plain
        for step in steps - self._packed.keys():
            packed_layers = [[pack(weight, step.rows) for weight in layer] for layer in layers]
            self._packed[step] = packed_layers, pack(head, max(step.logits_rows, 1))

    def _time(
        self, steps: list[LinearStep], linear: Linear, weights: Callable[[LinearStep], Weights]
    ) -> float:
        inputs = {step: self._inputs(step) for step in steps}
        started_s = time.perf_counter()
        for step in steps:
            layers, head = weights(step)
            layer_inputs, head_input = inputs[step]
            for layer in layers:
                for x, weight in zip(layer_inputs, layer, strict=True):
                    linear(x, weight)
            if step.logits_rows:
                linear(head_input, head)
        return time.perf_counter() - started_s

    def _inputs(self, step: LinearStep) -> tuple[list[torch.Tensor], torch.Tensor]:
        layer = [
            torch.randn(step.rows, shape.in_features, dtype=self._dtype)
            for shape in self._shapes.layer
        ]
        return layer, torch.randn(
            step.logits_rows, self._shapes.head.in_features, dtype=self._dtype
        )


if __name__ == "__main__":
    serve(LinearLimit)
