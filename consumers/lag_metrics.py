"""The lag, and the work on it, as Prometheus metrics (contract §9): what was read last. A scrape
does no I/O.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.consumers.lag import PartitionLag
from headrace.consumers.lag_watch import LagWatch
from headrace.schemas.metrics import PREFIX

STALE_S = 30.0
"""From this age of a reading on, the age of what is unfinished grows with it."""

LABELS = ("topic", "partition")


class LagMetrics(Collector):
    """Registers itself in `registry`. From the first reading on every partition has its value; no
    reading later takes it away.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        watch: LagWatch,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch, self._clock = watch, clock
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All of them, from one reading; before the first, families without values."""
        age_s, latest = self._watch.age_s(self._clock()), self._watch.latest
        yield GaugeMetricFamily(
            PREFIX + "lag_age_seconds",
            "Age of the last reading of the lag; before the first, how long it is waited for",
            value=age_s,
        )
        yield CounterMetricFamily(
            PREFIX + "lag_read_failures",
            "Readings of the lag that failed",
            value=self._watch.num_failures,
        )
        yield from _of_partitions(latest.partitions if latest else (), age_s)
        yield GaugeMetricFamily(
            PREFIX + "lag_tokens",
            "Estimated tokens of the unfinished requests",
            value=latest.tokens if latest else None,
        )
        yield GaugeMetricFamily(
            PREFIX + "answers_running",
            "Answers that have begun in the response log and not ended",
            value=self._watch.answers.num_open,
        )
        yield CounterMetricFamily(
            PREFIX + "answer_tokens",
            "Tokens of answers that came through the response log; estimated until their end",
            value=self._watch.answers.num_tokens,
        )


def _of_partitions(partitions: Iterable[PartitionLag], age_s: float) -> Iterator[Metric]:
    records = GaugeMetricFamily(
        PREFIX + "consumer_lag", "Records that the group has not finished", labels=LABELS
    )
    seconds = GaugeMetricFamily(
        PREFIX + "consumer_lag_seconds", "Age of the oldest unfinished record", labels=LABELS
    )
    for one in partitions:
        labels = (one.topic, str(one.partition))
        records.add_metric(labels, one.records)
        seconds.add_metric(labels, _seconds_now(one, age_s))
    yield records
    yield seconds


def _seconds_now(one: PartitionLag, age_s: float) -> float:
    """What is unfinished gets older while nobody can ask."""
    return one.seconds + age_s if one.records and age_s > STALE_S else one.seconds
