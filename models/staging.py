"""The way of a step's numbers to the device: ids, positions, block tables.

To an accelerator they go through one pinned buffer that is kept, by a copy that does not wait for
what runs there.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import torch


class Staging:
    """Sends lists of numbers to one device, those of a call in one copy. One thread uses it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def send(self, *lists: Sequence[int]) -> list[torch.Tensor]:
        """Each list as a tensor of its own. Shapes: returns (len(list),) int64."""
        ends = list(accumulate(map(len, lists), initial=0))
        host = self._stage(list(chain.from_iterable(lists)))
        there = host.to(self.device, non_blocking=True)
        self._mark()
        return [there[start:end] for start, end in pairwise(ends)]

    def fill(self, target: torch.Tensor, values: Sequence[int]) -> None:
        """Overwrite a tensor of the device. Shapes: target (...) int64, of `len(values)` items."""
        target.copy_(self._stage(values).view(target.shape), non_blocking=True)
        self._mark()

    def _stage(self, values: Sequence[int]) -> torch.Tensor:
        host = torch.tensor(values, dtype=torch.long)
        if self.device.type == "cpu":
            return host
        if self._copied is not None:
            self._copied.synchronize()  # the copy before may still read the buffer
        if self._pinned is None or len(self._pinned) < len(values):
            self._pinned = torch.empty(2 * len(values), dtype=torch.long, pin_memory=True)
        return self._pinned[: len(values)].copy_(host)

    def _mark(self) -> None:
        if self.device.type != "cpu":
            self._copied = torch.cuda.current_stream(self.device).record_event()
