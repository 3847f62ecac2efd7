"""The worker's Prometheus metrics (contract §9). Label values come from closed sets only."""

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.models.kv.metrics import KVMetrics
from headrace.schemas.errors import ErrorCode
from headrace.schemas.event import FINISH_REASONS
from headrace.schemas.metrics import (
    BATCH_SIZE_BUCKETS,
    INTER_TOKEN_BUCKETS_S,
    LATENCY_BUCKETS_S,
    PREFIX,
    PREFIX_CACHE_TIERS,
)

UNSTORED_REASONS = ("does not fit", "changed", "fenced")
OTHER = "other"
"""The label of what is in no list, so that a mistake or a new value makes no new series."""


class ClosedCounter:
    """A counter with one label, whose values are all there from the start."""

    def __init__(self, counter: Counter, values: Iterable[str]) -> None:
        self._counter = counter
        self._values = frozenset(map(str, values))
        for value in (*self._values, OTHER):
            counter.labels(value)

    def labels(self, value: str | None) -> Counter:
        """The counter of `value`; of `other` where it is none of the set."""
        return self._counter.labels(value if value in self._values else OTHER)


class WorkerMetrics:
    """All metrics of one worker process, in a registry of its own."""

    def __init__(self) -> None:
        # a second series for each counter and bucket set, which nobody asks for
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, registry=registry, buckets=buckets)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.success = ClosedCounter(
            counter("request_success", "Requests completed", ("finished_reason",)), FINISH_REASONS
        )
        self.failure = ClosedCounter(
            counter("request_failure", "Requests failed", ("code",)), tuple(ErrorCode)
        )
        self.duplicates = counter("request_duplicates", "Records with a request id seen before")
        self._ignored = counter("records_ignored", "Records that ask for nothing", ("topic",))
        self.ignored = ClosedCounter(self._ignored, ())
        self.dead_letters = counter("dead_letters", "Records sent to the dead-letter topic")
        self.resumed = counter("resumed", "Generations gone on with after another owner")
        self.fenced = counter("fenced", "Writes refused because a newer owner stands there")
        self.sessions_unstored = ClosedCounter(
            counter("sessions_unstored", "Turns whose conversation was not stored", ("reason",)),
            UNSTORED_REASONS,
        )
        self.cache_queries = counter(
            "prefix_cache_queries", "Tokens looked up; redis: those not found here", ("tier",)
        )
        self.cache_hits = counter(
            "prefix_cache_hits", "Tokens not computed, as their KV state was there", ("tier",)
        )
        for tier in PREFIX_CACHE_TIERS:
            self.cache_queries.labels(tier)
            self.cache_hits.labels(tier)
        self.kv = KVMetrics(registry)
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From the record's timestamp", LATENCY_BUCKETS_S
        )
        self.queue_time = histogram(
            "request_queue_time_seconds",
            "From the record's timestamp to prefill",
            LATENCY_BUCKETS_S,
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between tokens of a stream", INTER_TOKEN_BUCKETS_S
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds",
            "From the record's timestamp to the end",
            LATENCY_BUCKETS_S,
        )
        self.batch_size = histogram(
            "batch_size", "Rows that a step gave tokens", BATCH_SIZE_BUCKETS
        )
        self._build_info = Gauge(
            PREFIX + "build_info",
            "1; what this worker runs stands in the labels",
            ("version", "model", "dtype", "fingerprint"),
            registry=registry,
        )

    def count_ignored_of(self, topics: Iterable[str]) -> None:
        """The topics whose records may be ignored; before it, all count as `other`."""
        self.ignored = ClosedCounter(self._ignored, topics)

    def describe(self, *, model: str, dtype: str, fingerprint: str) -> None:
        """`headrace_build_info`: what is known once the model is loaded."""
        self._build_info.labels(version("headrace"), model, dtype, fingerprint).set(1)

    def watch_engine(
        self,
        *,
        running: Callable[[], float],
        waiting: Callable[[], float],
        kv_usage: Callable[[], float],
    ) -> None:
        """Gauges that ask the engine when they are scraped."""
        for name, text, ask in (
            ("num_requests_running", "Rows in the engine's batch", running),
            ("num_requests_waiting", "Requests waiting for the engine", waiting),
            ("kv_cache_usage_perc", "Part of the KV pool in use, 0 to 1", kv_usage),
        ):
            Gauge(PREFIX + name, text, registry=self.registry).set_function(ask)

    def watch_oldest(self, ask: Callable[[], dict[int, float]]) -> None:
        """`headrace_oldest_unfinished_seconds{partition}`: ages in seconds, asked when scraped.

        An owned partition where nothing is unfinished has 0.
        """
        self.registry.register(_OldestUnfinished(ask))


class _OldestUnfinished(Collector):
    def __init__(self, ask: Callable[[], dict[int, float]]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        text = "Age of the oldest unfinished record of an owned partition"
        gauge = GaugeMetricFamily(PREFIX + "oldest_unfinished_seconds", text, labels=["partition"])
        for partition, age_s in self._ask().items():
            gauge.add_metric([str(partition)], age_s)
        yield gauge
