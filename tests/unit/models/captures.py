"""Ways to record a padded decode step without CUDA, each named by how it behaves."""

from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from headrace.models.padded_decode import PaddedStep, StepOutput


class EagerCapture:
    """Records nothing: each replay runs the step again. Notes the shapes that it was asked for."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, step: PaddedStep, inputs: torch.Tensor) -> Callable[[], StepOutput]:
        self.shapes.append(tuple(inputs.shape))
        step(inputs)
        return lambda: step(inputs)


def traced_capture(step: PaddedStep, inputs: torch.Tensor) -> Callable[[], StepOutput]:
    """As a CUDA graph, keeps the operations on tensors and none of the Python around them: a number
    that Python took from a tensor is an error, one that it made itself stays for ever.
    """

    def run(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = step(inputs)
        return output.logits, output.summary

    graph = make_fx(run, tracing_mode="real")(inputs)
    return lambda: StepOutput(*graph(inputs))


def stale_capture(step: PaddedStep, inputs: torch.Tensor) -> Callable[[], StepOutput]:
    """Answers for ever what it saw when it was made."""
    output = step(inputs)
    return lambda: output


def spoiling_capture(step: PaddedStep, inputs: torch.Tensor) -> Callable[[], StepOutput]:
    """Takes each token to be another one, so wrong keys and values are written too."""

    def replay() -> StepOutput:
        inputs[:, 0] += 1
        return step(inputs)

    return replay


class FailingCapture:
    """Raises, and counts how often it was asked."""

    def __init__(self, error: RuntimeError) -> None:
        self.error, self.num_calls = error, 0

    def __call__(self, step: PaddedStep, inputs: torch.Tensor) -> Callable[[], StepOutput]:
        self.num_calls += 1
        step(inputs)
        raise self.error
