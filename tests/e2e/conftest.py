"""One browser and one gateway with its page, for all browser tests."""

import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings
from tests.e2e.page_site import WORDS, Site, reset
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, ScriptedSink

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served_page(kafka_bootstrap: str) -> AsyncIterator[Site]:
    """A gateway that runs for all tests: each has sessions of its own."""
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=f"t{uuid.uuid4().hex[:12]}")
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    async with ResponseWriter(settings) as events, ScriptedSink(events, WORDS) as sink:
        found = Site(settings, sink)
        await found.start()
        yield found
        await found.stop()


@pytest.fixture
def site(served_page: Site) -> Site:
    """The gateway; its worker is as it was at first."""
    reset(served_page.worker)
    return served_page


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "the browser tests need chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield found
        await found.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """Like a browser of one person; an error in a page's console fails the test."""
    problems: list[str] = []
    found = await browser.new_context(viewport={"width": 1180, "height": 760})
    found.on("weberror", lambda error: problems.append(str(error.error)))
    found.on(
        "console",
        lambda said: problems.append(said.text) if "Content Security" in said.text else None,
    )
    yield found
    await found.close()
    assert problems == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext, site: Site) -> Page:
    """The page, connected."""
    found = await context.new_page()
    await found.goto(site.url)
    await expect(found.locator("#connection")).to_have_text("Connected")
    return found


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[str], Path]:
    """Where a screenshot goes, for people to look at: below `--basetemp`."""
    return lambda name: tmp_path / f"{name}.png"
