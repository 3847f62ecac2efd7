"""What an autoscaler says to Prometheus, served by a thread of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    start_http_server,
)

from headrace.deploy.autoscale.decision import Workers
from headrace.schemas.errors import SettingsError
from headrace.schemas.metrics import PREFIX

_STEM = PREFIX + "autoscaler_"


class AutoscalerMetrics:
    """All metrics of one autoscaler, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self.desired = Gauge(
            _STEM + "desired_workers", "Workers that there should be", registry=registry
        )
        self._workers = Gauge(
            _STEM + "workers", "Workers by what they do", ("state",), registry=registry
        )
        self._events = Counter(
            _STEM + "scale_events", "Decisions to add or drain", ("direction",), registry=registry
        )
        self.speed = Gauge(
            _STEM + "speed_tokens_per_second", "Of one worker, as measured", registry=registry
        )
        self.blind = Counter(
            _STEM + "blind_readings", "Readings without a usable lag", registry=registry
        )
        for direction in ("out", "in"):
            self._events.labels(direction)
        self.show(Workers(0))

    def show(self, workers: Workers) -> None:
        """How many do what."""
        self._workers.labels("ready").set(workers.ready)
        self._workers.labels("starting").set(len(workers.starting_since_s))
        self._workers.labels("draining").set(workers.draining)

    def count_event(self, before: int, after: int) -> None:
        """A decision to have another number of workers."""
        self._events.labels("out" if after > before else "in").inc()


@contextmanager
def served(metrics: AutoscalerMetrics, host: str, port: int) -> Iterator[None]:
    """`/metrics` on this address, until the end of the block.

    Raises: SettingsError where the port is taken.
    """
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as problem:
        raise SettingsError(f"HEADRACE_METRICS_PORT={port}: {problem.strerror}") from problem
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
