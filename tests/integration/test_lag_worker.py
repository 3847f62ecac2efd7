"""The lag and a worker's own metrics while a real worker works a backlog off."""

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.consumers.lag_service import LagService
from tests.pipeline import Pipeline, WorkerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def _ask(pipeline: Pipeline, first: int, count: int) -> list[str]:
    """One request for each of `count` sessions."""
    asked = [
        pipeline.ask(
            {"prompt": "hi", "max_tokens": 1, "request_id": f"r{number}"}, key=f"s{number}"
        )
        for number in range(first, first + count)
    ]
    return list(await asyncio.gather(*asked))


async def _series(worker: WorkerProcess) -> dict[tuple[str, ...], float]:
    """A scrape: value by name and labels."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{worker.metrics_port}/metrics")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_a_backlog_is_right_to_the_record_until_nothing_is_left(pipeline: Pipeline) -> None:
    """Nobody answers, then somebody does and the lag falls to 0; the worker has as many series
    after 220 sessions as after 20 (cases K8, K10).
    """
    service = LagService(pipeline.settings)
    await service.start()
    try:
        asked = await _ask(pipeline, 0, 20)
        assert (await service.read()).records == 20
        worker = await pipeline.start_worker()
        await pipeline.finished(asked)
        await pipeline.all_committed()
        assert (await service.read()).records == 0
        few = await _series(worker)
        asked = await _ask(pipeline, 20, 200)
        await pipeline.finished(asked)
        await pipeline.all_committed()
        lag = await service.read()
        many = await _series(worker)
    finally:
        await service.stop()
    assert [(one.records, one.seconds, one.tokens) for one in lag.partitions] == [(0, 0.0, 0)] * 8
    assert set(few) == set(many)
    assert many["headrace_request_success_total", "length"] == 220
    idle = [many["headrace_oldest_unfinished_seconds", str(number)] for number in range(4)]
    assert idle == [0.0] * 4
    assert [name[0] for name in many].count("headrace_build_info") == 1
