"""Recording a step as a CUDA graph: replayed by one call instead of one per kernel."""

from collections.abc import Callable

import torch

from headrace.models.padded_decode import PaddedStep, StepOutput

WARM_UP_STEPS = 2
"""Libraries make their plans and workspaces then, which must not be recorded."""


class CudaGraphCapture:
    """Records steps on one device, all in one pool of memory: only one of them runs at a time, and
    its output is read before the next begins. See `padded_decode.Capture`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: PaddedStep, inputs: torch.Tensor) -> Callable[[], StepOutput]:
        """Raises: RuntimeError (or torch.AcceleratorError with a code of stream capture) if the
        step does what cannot be recorded.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            self._warm_up(step, inputs)
            # Other threads may use the device meanwhile: only this one's calls are checked.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                output = step(inputs)

        def replay() -> StepOutput:
            graph.replay()
            return output

        return replay

    def _warm_up(self, step: PaddedStep, inputs: torch.Tensor) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP_STEPS):
                step(inputs)
        current.wait_stream(self._stream)
