"""Whether fetching KV state is cheaper than computing it. Plain numbers, no I/O, no clock.

    fetch:    latency + bytes / bandwidth          compute:    tokens / prefill speed

All three are measured as the worker runs. SmolLM2-135M in float32 on CPUs: 46 KB a token, 1 GB/s,
1,500 tokens/s, so fetching wins 15 times. An 8B model in float16 on an H100: 128 KB a token over
10 Gbit/s is 8,000 tokens/s, computing 20,000, so it loses.
"""

from dataclasses import dataclass

PROBE_INTERVAL_S = 30.0
"""How often something is moved although it does not pay: the network may have become faster, and
only what is moved is measured.
"""

MIN_SAMPLE_BYTES = 100_000
MIN_SAMPLE_TOKENS = 64
"""Smaller ones measure the round trip or the step, not the speed."""


@dataclass(slots=True)
class _Average:
    """An exponentially weighted mean; the first sample replaces the start value."""

    value: float
    weight: float = 0.3
    _sampled: bool = False

    def add(self, sample: float) -> None:
        self.value += (sample - self.value) * (self.weight if self._sampled else 1.0)
        self._sampled = True


class CostGate:
    """Weighs moving blocks against computing them, by what was measured. The start values hold
    until the first measurement of each.

    Units: seconds, bytes, tokens.
    """

    def __init__(
        self,
        *,
        prefill_tokens_per_s: float = 5_000.0,
        bandwidth_bytes_per_s: float = 1e9,
        latency_s: float = 0.002,
    ) -> None:
        self._prefill = _Average(prefill_tokens_per_s)
        self._bandwidth = _Average(bandwidth_bytes_per_s)
        self._latency = _Average(latency_s)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """As measured, between this process and Redis."""
        return self._bandwidth.value

    def pays(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether moving `num_bytes` is faster than computing the `num_tokens` they stand for."""
        move_s = self._latency.value + num_bytes / self._bandwidth.value
        return move_s < num_tokens / self._prefill.value

    def moved(self, num_bytes: int, seconds: float) -> None:
        """Blocks came, or there were none: then it was the latency that was measured."""
        if seconds <= 0:
            return
        if num_bytes >= MIN_SAMPLE_BYTES:
            self._bandwidth.add(num_bytes / seconds)
        elif not num_bytes:
            self._latency.add(seconds)

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """The engine computed a prompt: `num_tokens` that were not cached."""
        if num_tokens >= MIN_SAMPLE_TOKENS and seconds > 0:
            self._prefill.add(num_tokens / seconds)


class ProbeTimer:
    """Lets something through once in PROBE_INTERVAL_S, the first time at once.

    Units: `now_s` on any clock that only goes on.
    """

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def take(self, now_s: float) -> bool:
        """Whether a probe is due; the next one is due PROBE_INTERVAL_S later."""
        if now_s - self._last_s < PROBE_INTERVAL_S:
            return False
        self._last_s = now_s
        return True
