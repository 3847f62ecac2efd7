"""What happens to KV blocks in Redis, as Prometheus counters.

Label values come from closed sets.
"""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter

from headrace.schemas.metrics import KV_DIRECTIONS, PREFIX


class StoreError(StrEnum):
    """Why Redis was of no use."""

    UNAVAILABLE = "unavailable"
    """No connection, no answer in time, or one that makes no sense."""
    CORRUPT = "corrupt"
    """A value that is not the block it should be; it was deleted."""
    REFUSED = "refused"
    """Redis did not take a block: it is full, read-only or loading."""
    EXPORT = "export"
    """The engine could not give a copy of its blocks."""


class Skipped(StrEnum):
    """Why Redis was not asked, or a turn's blocks not sent."""

    COST = "cost"
    """Computing is cheaper."""
    BREAKER = "breaker"
    """It failed a moment ago."""
    QUEUE_FULL = "queue_full"
    """Turns end faster than their blocks can be written: the oldest was dropped."""
    DRAIN = "drain"
    """The worker had to go before all was written."""
    MEMORY = "memory"
    """Too much fetched state waits for the engine already."""


class KVMetrics:
    """Counters of one worker, in its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, label: str) -> Counter:
            return Counter(PREFIX + name, text, (label,), registry=registry)

        self._bytes = counter("kv_redis_bytes", "Bytes of KV blocks moved", "direction")
        self._blocks = counter("kv_redis_blocks", "KV blocks moved", "direction")
        self._errors = counter("kv_redis_errors", "Calls or blocks that failed", "kind")
        self._skipped = counter("kv_redis_skipped", "Prefetches or turns left out", "reason")
        for direction in KV_DIRECTIONS:
            self._bytes.labels(direction)
            self._blocks.labels(direction)
        for kind in StoreError:
            self._errors.labels(kind.value)
        for reason in Skipped:
            self._skipped.labels(reason.value)

    def read(self, num_blocks: int, num_bytes: int) -> None:
        self._blocks.labels("read").inc(num_blocks)
        self._bytes.labels("read").inc(num_bytes)

    def written(self, num_blocks: int, num_bytes: int) -> None:
        self._blocks.labels("written").inc(num_blocks)
        self._bytes.labels("written").inc(num_bytes)

    def error(self, kind: StoreError, count: int = 1) -> None:
        self._errors.labels(kind.value).inc(count)

    def skipped(self, reason: Skipped) -> None:
        self._skipped.labels(reason.value).inc()
