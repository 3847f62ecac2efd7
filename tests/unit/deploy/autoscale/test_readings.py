"""What the autoscaler makes of a lag, of a worker's metrics, and of its flags."""

import pytest

from headrace.consumers.lag import Lag, PartitionLag
from headrace.deploy.autoscale.decision import Backlog, Workers
from headrace.deploy.autoscale.metrics import AutoscalerMetrics
from headrace.deploy.autoscale.policy import parse_bounds
from headrace.deploy.autoscale.scaler import backlog_of
from headrace.deploy.autoscale.scrape import counters_in, read_counters
from headrace.deploy.autoscale.speed import Counters
from headrace.deploy.processes import free_port
from headrace.models.kv.metrics import KVMetrics
from headrace.streams.metrics import WorkerMetrics


def partition(topic: str, number: int, records: int, tokens: int) -> PartitionLag:
    """One of a topic that begins at 0."""
    return PartitionLag(topic, number, records, float(records), tokens, 0, 0, records)


def test_unfinished_is_everything() -> None:
    """A cancel counts as a record; a partition that both topics fill counts once."""
    lag = Lag(
        (
            partition("requests", 0, 2, 700),
            partition("requests", 1, 0, 0),
            partition("requests", 2, 1, 50),
            partition("control", 0, 1, 0),
            partition("control", 1, 0, 0),
        ),
        0.0,
    )
    assert backlog_of(lag, "requests", 600) == Backlog(4, 600, 3, 2)


def test_the_names_are_those_of_a_worker() -> None:
    """The text is what a real worker's registry writes."""
    from prometheus_client import generate_latest

    metrics = WorkerMetrics()
    metrics.watch_engine(running=lambda: 3, waiting=lambda: 2, kv_usage=lambda: 0)
    metrics.generation_tokens.inc(100)
    metrics.prompt_tokens.inc(50)
    metrics.cache_hits.labels("local").inc(20)
    metrics.cache_hits.labels("redis").inc(5)
    assert isinstance(metrics.kv, KVMetrics)
    text = generate_latest(metrics.registry).decode()
    assert counters_in(text) == Counters(generated=100.0, computed=25.0, rows=3.0, waiting=2.0)


def test_a_worker_that_does_not_answer_has_no_counters() -> None:
    """Nobody listens there."""
    assert read_counters("127.0.0.1", free_port()) is None


@pytest.mark.parametrize(("text", "bounds"), [("0..4", (0, 4)), (" 2..2 ", (2, 2))])
def test_bounds(text: str, bounds: tuple[int, int]) -> None:
    """MIN may be 0, and MAX the same as MIN."""
    assert parse_bounds(text) == bounds


@pytest.mark.parametrize("text", ["", "4", "4..", "..4", "-1..4", "1...4", "a..b", "1..4x", "1-4"])
def test_what_is_no_bounds(text: str) -> None:
    """The error shows what is wanted."""
    with pytest.raises(ValueError, match=r"is not MIN\.\.MAX, for example 0\.\.4"):
        parse_bounds(text)


@pytest.mark.parametrize(
    ("text", "wrong"), [("3..1", "MIN 3 is above MAX 1"), ("0..0", "MAX"), ("1..65", "1 to 64")]
)
def test_bounds_that_cannot_be(text: str, wrong: str) -> None:
    """Nobody could ever work, or too many would."""
    with pytest.raises(ValueError, match=wrong):
        parse_bounds(text)


def test_events_are_counted_by_direction() -> None:
    """All series are there from the start."""
    metrics = AutoscalerMetrics()
    metrics.count_event(1, 3)
    metrics.count_event(3, 2)
    metrics.count_event(2, 4)
    metrics.show(Workers(2, (1.0,), draining=1))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"headrace_autoscaler_{name}", labels)

    assert value("scale_events_total", direction="out") == 2
    assert value("scale_events_total", direction="in") == 1
    states = {state: value("workers", state=state) for state in ("ready", "starting", "draining")}
    assert states == {"ready": 2, "starting": 1, "draining": 1}
