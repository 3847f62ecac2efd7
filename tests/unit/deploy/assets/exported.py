"""What workers and gateways really export, from their registries."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.consumers.lag_watch import LagWatch
from headrace.schemas.settings import Settings
from headrace.streams.metrics import WorkerMetrics

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


def worker_families() -> list[Metric]:
    """The metric families of a worker."""
    metrics = WorkerMetrics()
    metrics.watch_engine(running=lambda: 0, waiting=lambda: 0, kv_usage=lambda: 0)
    metrics.watch_oldest(lambda: {0: 0.0})
    return list(metrics.registry.collect())


def gateway_families() -> list[Metric]:
    """The metric families of a gateway."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.watch_log(lambda: 0, lambda: 0)
    metrics.watch_past(lambda: 0, lambda: 0)
    metrics.watch_lag(LagWatch(Settings()))
    return list(registry.collect())


def sample_names(families: list[Metric]) -> set[str]:
    """The names that PromQL knows, also of metrics that have no sample yet."""
    return {name for family in families for name in _names(family)}


def _names(family: Metric) -> Iterator[str]:
    for suffix in _SUFFIXES.get(family.type, ("",)):
        yield family.name + suffix
