"""The worker's metrics: as many series at the end as at the start, and a value for each."""

import asyncio
from importlib.metadata import version
from uuid import uuid4

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.models.kv.metrics import Skipped, StoreError
from headrace.schemas.errors import ErrorCode
from headrace.schemas.event import FINISH_REASONS
from headrace.schemas.request import Record
from headrace.streams.metrics import WorkerMetrics
from tests.unit.streams.pipeline import PARTITION, Pipeline, pipeline

AT_ONCE = 100


def samples_of(metrics: WorkerMetrics) -> dict[tuple[str, ...], float]:
    """A scrape: value by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
    }


def described() -> WorkerMetrics:
    metrics = WorkerMetrics()
    metrics.count_ignored_of(("h.requests", "h.control"))
    metrics.describe(model="tiny", dtype="float32", fingerprint="fp-1")
    return metrics


async def _serve(p: Pipeline, count: int) -> None:
    """`count` sessions with names of their own; every fourth asks for what there is not."""
    for _ in range(count // AT_ONCE or 1):
        names = [uuid4().hex for _ in range(min(count, AT_ONCE))]
        for number, name in enumerate(names):
            refused = number % 4 == 0
            model = f"no-{name}" if refused else "tiny"
            await p.send(name, f"about {name}", session=name, model=model, metadata={name: name})
            if not refused:
                await p.say(name, "x", finish=True)
        await asyncio.gather(*map(p.finished, names))
        await _take_what_asks_for_nothing(p, names[0])


async def _take_what_asks_for_nothing(p: Pipeline, name: str) -> None:
    """A tombstone without a key, poison, and a record of a topic that nobody has heard of."""
    for topic, value in (("requests", None), ("requests", name.encode()), (name, None)):
        offset, p.next_offset = p.next_offset, p.next_offset + 1
        await p.take(Record(topic, PARTITION, offset, 0, None, value, ()))


@pytest.mark.timeout(60)
async def test_2000_sessions_leave_as_many_series_as_20() -> None:
    """Cases K10: no session, request, model or error text makes a series of its own."""
    async with pipeline(max_open=AT_ONCE * 2) as p:
        await _serve(p, 20)
        few = samples_of(p.metrics)
        await _serve(p, 1980)
        many = samples_of(p.metrics)
    assert set(few) == set(many)
    assert many["headrace_request_success_total", "stop"] >= 1425
    assert many["headrace_request_failure_total", "model_not_found"] >= 475
    assert many["headrace_records_ignored_total", "requests"] >= 19


def test_every_value_of_a_label_is_there_from_the_start() -> None:
    """A rate over a counter that appears at its first error misses that error."""
    samples = samples_of(described())
    expected = [
        *[("headrace_request_success_total", reason) for reason in FINISH_REASONS],
        *[("headrace_request_failure_total", code.value) for code in ErrorCode],
        *[("headrace_records_ignored_total", topic) for topic in ("h.requests", "h.control")],
        *[
            ("headrace_sessions_unstored_total", why)
            for why in ("does not fit", "changed", "fenced")
        ],
        *[("headrace_kv_redis_errors_total", kind.value) for kind in StoreError],
        *[("headrace_kv_redis_skipped_total", reason.value) for reason in Skipped],
    ]
    assert [samples.get(name) for name in expected] == [0.0] * len(expected)


def test_an_unknown_value_counts_as_other() -> None:
    """It is not lost, and makes no series."""
    metrics = described()
    before = set(samples_of(metrics))
    for counter in (metrics.success, metrics.failure, metrics.ignored, metrics.sessions_unstored):
        counter.labels(uuid4().hex).inc()
    after = samples_of(metrics)
    assert set(after) == before
    assert after["headrace_request_failure_total", "other"] == 1.0


def test_what_runs_stands_in_build_info() -> None:
    """One series, with the fingerprint that answers carry."""
    found = [labels for (name, *labels) in samples_of(described()) if name == "headrace_build_info"]
    assert [set(labels) for labels in found] == [
        {version("headrace"), "tiny", "float32", "fp-1"},
    ]


def test_there_are_no_series_of_creation_times() -> None:
    """They double the counters, and nobody asks for them."""
    names = {name for name, *_ in samples_of(described())}
    assert [name for name in names if name.endswith("_created")] == []
