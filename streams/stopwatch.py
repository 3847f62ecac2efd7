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
        self._scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def note(self, output: EngineOutput) -> None:
        self._scheduled_s = self._scheduled_s or output.scheduled_s
        if not output.token_ids:
            return
        if self._first_s is None:
            self._first_s = output.emitted_s
            self._metrics.queue_time.observe(self._age_s(self._scheduled_s))
            self._metrics.time_to_first_token.observe(self._age_s(output.emitted_s))
        else:
            gap_s = (output.emitted_s - self._last_s) / len(output.token_ids)
            self._metrics.inter_token_latency.observe(gap_s)
        self._last_s = output.emitted_s

    def timings(self) -> Timings:
        if self._scheduled_s is None:
            return Timings()
        first_s = self._first_s or self._scheduled_s
        return Timings(
            queue_ms=self._age_s(self._scheduled_s) * 1000,
            prefill_ms=(first_s - self._scheduled_s) * 1000,
            ttft_ms=self._age_s(first_s) * 1000,
            decode_ms=max(0.0, self._last_s - first_s) * 1000,
        )

    def _age_s(self, monotonic_s: float) -> float:
        """Seconds from the record's timestamp to a moment on the monotonic clock."""
        moment_s = time.time() - (time.monotonic() - monotonic_s)
        return max(0.0, moment_s - self._submitted_s)
