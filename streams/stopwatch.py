"""When things happened to one generation in this worker: `timings` of its last event,
latency metrics.
"""

import time

from headrace.models.request import EngineOutput
from headrace.schemas.event import Timings
from headrace.streams.metrics import WorkerMetrics


class Stopwatch:
    """Fed with the engine's outputs; counts from the record's timestamp."""

    def __init__(self, timestamp_ms: int, metrics: WorkerMetrics) -> None:
        self._submitted_s = timestamp_ms / 1000
        self._metrics = metrics
        self.scheduled_s: float | None = None
        self.first_s: float | None = None
        self.last_s: float | None = None
        """When its prefill began, and its first and last token came; monotonic."""

    def note(self, output: EngineOutput) -> None:
        self.scheduled_s = self.scheduled_s or output.scheduled_s
        if not output.token_ids:
            return
        if self.first_s is None or self.last_s is None:
            self.first_s = output.emitted_s
            self._metrics.queue_time.observe(self._age_s(self.scheduled_s))
            self._metrics.time_to_first_token.observe(self._age_s(output.emitted_s))
        else:
            gap_s = (output.emitted_s - self.last_s) / len(output.token_ids)
            self._metrics.inter_token_latency.observe(gap_s)
        self.last_s = output.emitted_s

    def timings(self) -> Timings:
        if self.scheduled_s is None:
            return Timings()
        first_s = self.first_s or self.scheduled_s
        return Timings(
            queue_ms=self._age_s(self.scheduled_s) * 1000,
            prefill_ms=(first_s - self.scheduled_s) * 1000,
            ttft_ms=self._age_s(first_s) * 1000,
            decode_ms=max(0.0, (self.last_s or 0.0) - first_s) * 1000,
        )

    def _age_s(self, monotonic_s: float) -> float:
        """Seconds from the record's timestamp to a moment on the monotonic clock."""
        moment_s = time.time() - (time.monotonic() - monotonic_s)
        return max(0.0, moment_s - self._submitted_s)
