"""A real Prometheus with the shipped rules over a real pipeline: the dashboard's queries all have
data, and the lag alert fires.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from headrace.deploy.processes import ServerProcess, free_port
from headrace.deploy.supervisor import answers
from headrace.schemas.settings import Settings
from tests.pipeline import Pipeline
from tests.tools import tool
from tests.unit.deploy.assets import shipped

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

START_TIMEOUT_S = 60.0
SCRAPED_S = 30.0
"""Within which scrapes and rules, once a second, must have done their work."""

VARIABLES = {"$__rate_interval": "30s", "$instance": ".+", "$topic": ".+[.]requests"}
MESSAGES = [{"role": "user", "content": "hi"}]
NUM_QUEUED = 25
QUEUED_AGE_S = 400.0


class Prometheus:
    """Asks the HTTP API of one server."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url)

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an instant query finds. Raises: HTTPStatusError for a bad query."""
        answer = await self._client.get("/api/v1/query", params={"query": expression})
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    async def firing(self) -> dict[str, float]:
        """The alerts that fire now, with their values."""
        answer = await self._client.get("/api/v1/alerts")
        alerts = answer.json()["data"]["alerts"]
        return {
            one["labels"]["alertname"]: float(one["value"])
            for one in alerts
            if one["state"] == "firing"
        }

    async def aclose(self) -> None:
        await self._client.aclose()


@contextmanager
def server(name: str, folder: Path, args: list[str], port: int, ready: str) -> Iterator[str]:
    """A server program that answers at `ready`; its address."""
    process = ServerProcess(name, folder / f"{name}.log")
    process.start(
        args,
        port=port,
        is_ready=lambda: answers("127.0.0.1", port, ready),
        timeout_s=START_TIMEOUT_S,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop(10.0)


def gateway(settings: Settings, folder: Path) -> Any:
    """A gateway process that reads the pipeline's lag."""
    port = free_port()
    flags = {
        "kafka": settings.kafka,
        "topic-prefix": settings.topic_prefix,
        "group": settings.group,
        "model": settings.model,
        "http-port": port,
    }
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "headrace.deploy.cli", "gateway", *words]
    return server("gateway", folder, command, port, "/readyz")


@asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, str]) -> AsyncIterator[Prometheus]:
    """The shipped configuration and rules, once a second, with these targets by job."""
    (config,) = shipped.documents(shipped.PROMETHEUS / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(shipped.RULES)]
    config["scrape_configs"] = [
        {"job_name": job["job_name"], "static_configs": [{"targets": [targets[job["job_name"]]]}]}
        for job in config["scrape_configs"]
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    args = [
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with server("prometheus", folder, args, port, "/-/ready") as url:
        client = Prometheus(url)
        try:
            yield client
        finally:
            await client.aclose()


async def test_queries_have_data_and_the_lag_alert_fires(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Every panel shows something; then nobody works while old requests wait."""
    worker = await pipeline.start_worker()
    with gateway(pipeline.settings, tmp_path) as address:
        targets = {
            "headrace-worker": f"127.0.0.1:{worker.metrics_port}",
            "headrace-gateway": address.removeprefix("http://"),
        }
        async with prometheus(tmp_path, targets) as asked:
            await some_traffic(pipeline, address)
            await every_query_has_data(asked)
            assert await asked.firing() == {}
            assert await worker.terminate() == 0
            await queue_old_requests(pipeline)
            await until_critical(asked)


async def some_traffic(pipeline: Pipeline, address: str) -> None:
    """Answers over HTTP and Kafka, two turns of a session, and a refusal."""
    body = {"messages": MESSAGES, "max_tokens": 20, "stream": True}
    async with httpx.AsyncClient(base_url=address, timeout=30.0) as client:
        for _ in range(2):
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert "[DONE]" in answer.text
    await pipeline.answer({"messages": MESSAGES, "max_tokens": 20}, key="s1")
    await pipeline.answer({"messages": MESSAGES, "max_tokens": 20}, key="s1")
    refused = await pipeline.answer({"messages": MESSAGES, "model": "another"})
    assert refused.failed


async def every_query_has_data(asked: Prometheus) -> None:
    """Each query of the dashboard, its variables set as for "All"."""
    left = {(title, filled(query)) for title, query in shipped.queries()}
    assert left
    deadline_s = time.monotonic() + SCRAPED_S
    while left and time.monotonic() < deadline_s:
        left = {(title, query) for title, query in left if not await asked.query(query)}
        await asyncio.sleep(0.5)
    assert set() == left


def filled(query: str) -> str:
    """A query as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


async def queue_old_requests(pipeline: Pipeline) -> None:
    """Records that were produced minutes ago, by their timestamps."""
    produced_ms = int((time.time() - QUEUED_AGE_S) * 1000)
    topic, value = pipeline.settings.topics.requests, orjson.dumps({"messages": MESSAGES})
    for number in range(NUM_QUEUED):
        await pipeline.producer.send_and_wait(
            topic, value, key=f"old-{number}".encode(), timestamp_ms=produced_ms
        )


async def until_critical(asked: Prometheus) -> None:
    """The alert fires with the requests' age, and the lag gets right to the record."""
    queued = f"sum(headrace:lag_records:max) == {NUM_QUEUED}"
    async with asyncio.timeout(SCRAPED_S):
        firing: dict[str, float] = {}
        while "HeadraceLagCritical" not in firing or not await asked.query(queued):
            await asyncio.sleep(0.5)
            firing = await asked.firing()
    assert QUEUED_AGE_S <= firing["HeadraceLagCritical"] < QUEUED_AGE_S + 2 * SCRAPED_S
