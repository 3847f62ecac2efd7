"""The page, a real gateway and real workers: the one that writes is killed in mid-answer."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from headrace.consumers.lag_watch import LagWatch
from headrace.producers.request_producer import RequestProducer
from tests.e2e.page_site import KEPT, Site, answer, ask, facts, session, stored
from tests.faults import settings_of
from tests.pipeline import Pipeline, running_pipeline
from tests.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="session"),
]

TAKEOVER_MS = 60_000
"""For another worker to go on: the session timeout is ten seconds at most, the machine busy."""

SOME_TEXT = re.compile(r".{40}", re.DOTALL)

Picture = Callable[[str], Path]


@pytest_asyncio.fixture(loop_scope="session")
async def pipeline(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Pipeline]:
    """Two workers with a model that takes seconds for an answer."""
    model = make_tiny_model(tmp_path / "model", max_position_embeddings=4096, num_layers=32)
    settings = settings_of(kafka_bootstrap, redis_url, model, prefix=f"t{uuid4().hex[:12]}")
    async with running_pipeline(settings, tmp_path, partitions=2) as running:
        await running.start_workers(2)
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def real(pipeline: Pipeline) -> AsyncIterator[Site]:
    """A gateway before them."""
    lag = LagWatch(pipeline.settings)
    requests = RequestProducer(pipeline.settings, source="headrace/gateway")
    found = Site(pipeline.settings, requests, lag=lag)
    await requests.start()
    await lag.start()
    await found.start()
    yield found
    await found.stop()
    await lag.stop()
    await requests.stop()


async def test_an_answer_goes_on_when_its_worker_is_killed(
    page: Page, pipeline: Pipeline, real: Site, picture: Picture
) -> None:
    """The page says that it pauses, then who went on; its text is the log's, to the letter."""
    await page.goto(real.url)
    await expect(page.locator("#connection")).to_have_text("Connected")
    await page.get_by_role("button", name="Live figures").click()
    await ask(page, "Tell me about mills")
    await expect(answer(page)).to_have_text(SOME_TEXT, timeout=TAKEOVER_MS)
    (reply,) = pipeline.replies.values()
    victim = pipeline.worker(reply.published_by[-1])
    await expect(facts(page)).to_contain_text(f":{victim.process.pid}")
    victim.kill()
    await expect(facts(page)).to_contain_text("Paused", timeout=TAKEOVER_MS)
    await page.screenshot(path=picture("killed"))
    (survivor,) = [worker for worker in pipeline.workers if worker is not victim]
    names = facts(page).locator(".worker")
    await expect(names).to_contain_text(f":{survivor.process.pid}", timeout=TAKEOVER_MS)
    await page.screenshot(path=picture("went-on"))
    await expect(facts(page)).to_contain_text("first token", timeout=TAKEOVER_MS)
    await page.screenshot(path=picture("whole"))
    assert reply.publishers == [victim.process.pid, survivor.process.pid]
    await page.reload()
    await expect(session(page, "Tell me about mills")).to_be_visible()
    (kept,) = [text for name, text in (await stored(page)).items() if name.startswith(KEPT)]
    assert [reply.text] == [
        turn["text"] for turn in orjson.loads(kept)["turns"] if turn["role"] == "assistant"
    ]
