"""The background refresher and what a scrape shows of it."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.consumers.lag import Lag, PartitionLag
from headrace.consumers.lag_metrics import LagMetrics
from headrace.consumers.lag_watch import LagWatch
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings
from tests.fakes import Changes

AWAY = UnavailableError("Kafka", 1.0)
LAG = Lag(
    (
        PartitionLag("h.requests", 0, 3, 12.5, 90, 7, 0, 10),
        PartitionLag("h.requests", 1, 0, 0.0, 0, None, 0, 0),
    ),
    read_at_s=1000.0,
)


class ScriptedReadings:
    """Readings that come in this order, the last one again and again."""

    def __init__(self, *script: Lag | Exception) -> None:
        self.changes = Changes()
        self.num_reads = 0
        self.is_stopped = False
        self._script: Iterator[Lag | Exception] = iter(script)
        self._next = script[0]

    async def read(self) -> Lag:
        self._next = next(self._script, self._next)
        self.num_reads += 1
        self.changes.notify()
        if isinstance(self._next, Exception):
            raise self._next
        return self._next

    async def stop(self) -> None:
        self.is_stopped = True


async def _watched(readings: ScriptedReadings, until: Callable[[LagWatch], bool]) -> LagWatch:
    watch = LagWatch(Settings(), service=readings, refresh_s=0.001)
    await watch.start()
    await readings.changes.until(lambda: until(watch))
    await watch.stop()
    return watch


def _shown(watch: LagWatch, now_s: float) -> dict[tuple[str, str], float]:
    """Samples by name and partition."""
    registry = CollectorRegistry()
    LagMetrics(registry, watch, clock=lambda: now_s)
    return {
        (sample.name, sample.labels.get("partition", "")): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


async def test_kafka_that_is_away_is_asked_again() -> None:
    """Failures are counted, and what was read last stays."""
    readings = ScriptedReadings(AWAY, AWAY, LAG, AWAY)
    watch = await _watched(readings, lambda watch: watch.num_failures > 3)
    assert watch.latest == LAG
    assert readings.is_stopped


async def test_what_no_reading_expects_ends_it_and_is_raised_by_stop() -> None:
    """A mistake of ours is not taken for a Kafka that is away."""
    readings = ScriptedReadings(KeyError("mistake"))
    watch = LagWatch(Settings(), service=readings, refresh_s=0.001)
    await watch.start()
    await readings.changes.until(lambda: readings.num_reads)
    with pytest.raises(KeyError, match="mistake"):
        await watch.stop()


async def test_it_can_be_stopped_before_during_and_after() -> None:
    """Nothing is left behind."""
    readings = ScriptedReadings(LAG)
    watch = LagWatch(Settings(), service=readings, refresh_s=60)
    await watch.stop()
    await watch.start()
    await watch.stop()
    await watch.stop()
    assert len(asyncio.all_tasks()) == 1


async def test_every_partition_is_shown() -> None:
    """With the labels of the contract, zeros included."""
    watch = await _watched(ScriptedReadings(LAG), lambda watch: watch.latest is not None)
    assert _shown(watch, 1001.0) == {
        ("headrace_lag_age_seconds", ""): 1.0,
        ("headrace_lag_read_failures_total", ""): 0.0,
        ("headrace_consumer_lag", "0"): 3.0,
        ("headrace_consumer_lag", "1"): 0.0,
        ("headrace_consumer_lag_seconds", "0"): 12.5,
        ("headrace_consumer_lag_seconds", "1"): 0.0,
        ("headrace_lag_tokens", ""): 90.0,
        ("headrace_answers_running", ""): 0.0,
        ("headrace_answer_tokens_total", ""): 0.0,
    }


async def test_an_old_reading_stays_and_what_is_unfinished_gets_older() -> None:
    """A metric that vanishes with its source lets no alert fire (cases K8)."""
    watch = await _watched(ScriptedReadings(LAG), lambda watch: watch.latest is not None)
    fresh, old = _shown(watch, 1030.0), _shown(watch, 1100.0)
    assert fresh["headrace_consumer_lag_seconds", "0"] == 12.5
    assert old["headrace_consumer_lag_seconds", "0"] == 112.5
    assert old["headrace_consumer_lag_seconds", "1"] == 0.0
    assert old["headrace_consumer_lag", "0"] == 3.0
    assert old["headrace_lag_age_seconds", ""] == 100.0


async def test_before_the_first_reading_only_its_age_has_a_value() -> None:
    """The names are there, so that a list of metrics is complete; zeros would be invented."""
    registry = CollectorRegistry()
    GatewayMetrics(registry).watch_lag(LagWatch(Settings(), service=ScriptedReadings(LAG)))
    families = {
        family.name: len(family.samples)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        if "lag" in family.name
    }
    assert families == {
        "headrace_lag_age_seconds": 1,
        "headrace_lag_read_failures": 1,
        "headrace_consumer_lag": 0,
        "headrace_consumer_lag_seconds": 0,
        "headrace_lag_tokens": 0,
    }
