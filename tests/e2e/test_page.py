"""The chat page in a real browser, against a real gateway and Kafka; the worker is a scripted fake.

Screenshots are written where `--basetemp` says, for people to look at.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from headrace.consumers.gateway import build_app
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.processes import free_port
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, ScriptedSink
from tests.unit.consumers.running import running

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(60)]

WORDS = [f"word{number} " for number in range(40)]
WHOLE = re.compile("word0 .*word39")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Site:
    """A gateway that can be stopped and started again at the same address."""

    settings: Settings
    sink: ScriptedSink
    port: int = field(default_factory=free_port)
    _parts: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        log = ResponseLog(self.settings)
        await log.start()
        self._parts.push_async_callback(log.stop)
        app = build_app(self.settings, log, self.sink)
        await self._parts.enter_async_context(running(app, self.settings, self.port))

    async def stop(self) -> None:
        await self._parts.aclose()


@pytest.fixture
async def site(kafka_bootstrap: str, topic_prefix: str) -> AsyncIterator[Site]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    async with ResponseWriter(settings) as events, ScriptedSink(events, WORDS) as sink:
        sink.pause_s = 0.05
        sink.worker = "worker-7f3a"
        found = Site(settings, sink)
        await found.start()
        yield found
        await found.stop()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "the browser tests need chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield found
        await found.close()


@pytest.fixture
async def page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """The page, connected; an error in its console fails the test."""
    problems: list[str] = []
    context = await browser.new_context(viewport={"width": 1100, "height": 760})
    found = await context.new_page()
    found.on("pageerror", lambda error: problems.append(str(error)))
    await found.goto(site.url)
    await expect(found.locator("#connection")).to_have_text("Connected")
    yield found
    await context.close()
    assert problems == []


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


def answer(page: Page) -> Any:
    """The last answer's text."""
    return page.locator(".turn.assistant .text").last


async def test_an_answer_streams_and_its_facts_are_shown(
    page: Page, site: Site, tmp_path: Path
) -> None:
    """Words come one by one; then tokens, speed, time to the first token and the worker stand
    there.
    """
    await page.screenshot(path=tmp_path / "welcome.png")
    await ask(page, "Tell me something")
    await expect(answer(page)).to_contain_text("word3")
    assert "word39" not in (await answer(page).text_content() or "")
    await page.screenshot(path=tmp_path / "streaming.png")
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(answer(page)).to_have_text("".join(WORDS))
    facts = page.locator(".facts").last
    for text in ("3 tokens", "tokens/s", "first token", "worker-7f3a"):
        await expect(facts).to_contain_text(text)
    await ask(page, "And more")
    await expect(page.locator(".turn.assistant")).to_have_count(2)
    await expect(answer(page)).to_have_text("".join(WORDS))
    await page.screenshot(path=tmp_path / "answered.png")
    await page.emulate_media(color_scheme="dark")
    await page.screenshot(path=tmp_path / "dark.png")
    await page.set_viewport_size({"width": 390, "height": 700})
    await page.screenshot(path=tmp_path / "phone.png")
    sessions = {sent["session_id"] for sent in site.sink.submitted}
    assert len(sessions) == 1
    assert [len(sent["messages"]) for sent in site.sink.submitted] == [1, 1]


async def test_stop_ends_the_answer_and_the_chat_goes_on(page: Page, site: Site) -> None:
    """The button cancels; the text that came stays; the next question is answered."""
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word2")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".facts").last).to_contain_text("Stopped")
    await expect(answer(page)).to_contain_text("word2")
    assert len(site.sink.cancelled) == 1
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await ask(page, "Again")
    await expect(answer(page)).to_have_text("".join(WORDS))


async def test_a_reload_in_mid_answer_goes_on(page: Page, site: Site) -> None:
    """Reloaded twice while words come: none missing, none twice, one request."""
    await ask(page, "A long one")
    for word in ("word3", "word12"):
        await expect(answer(page)).to_contain_text(word)
        await page.reload()
        await expect(answer(page)).to_contain_text("word0 word1 word2")
    await expect(answer(page)).to_have_text("".join(WORDS))
    assert len(site.sink.submitted) == 1
    assert site.sink.cancelled == []


async def test_a_gateway_restart_in_mid_answer_goes_on(page: Page, site: Site) -> None:
    """The page says that it reconnects, and then has the words that came meanwhile."""
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word5")
    await site.stop()
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    await site.start()
    await expect(page.locator("#connection")).to_have_text("Connected")
    await expect(answer(page)).to_have_text("".join(WORDS))
    assert len(site.sink.submitted) == 1


async def test_a_question_asked_while_away_is_sent_once_it_is_back(page: Page, site: Site) -> None:
    """Nothing that was typed is lost."""
    await site.stop()
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    await ask(page, "Are you there?")
    await site.start()
    await expect(answer(page)).to_have_text("".join(WORDS))
    assert len(site.sink.submitted) == 1


async def test_markup_in_an_answer_is_shown_as_text(page: Page, site: Site) -> None:
    """No element is made of what a model, or a user, writes."""
    evil = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    site.sink.words = [evil[:10], evil[10:]]
    await ask(page, evil)
    await expect(answer(page)).to_have_text(evil)
    await expect(page.locator(".turn.user .text")).to_have_text(evil)
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("#turns script, #turns img").count() == 0


async def test_an_error_is_told_and_the_next_question_works(page: Page, site: Site) -> None:
    """A `failed` event is a sentence under the answer."""
    site.sink.error = RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "the prompt is too long")
    await ask(page, "x")
    await expect(page.locator(".facts").last).to_contain_text("the prompt is too long")
    site.sink.error = None
    await ask(page, "y")
    await expect(answer(page)).to_have_text("".join(WORDS))


async def test_two_tabs_on_a_session_both_show_the_answer(page: Page, site: Site) -> None:
    """I9: the second tab has the same conversation and follows it live."""
    other = await page.context.new_page()
    await other.goto(site.url)
    await expect(other.locator("#connection")).to_have_text("Connected")
    await ask(page, "For both")
    for tab in (page, other):
        await expect(answer(tab)).to_have_text("".join(WORDS))
        await expect(tab.locator(".turn.user .text")).to_have_text("For both")
    await page.get_by_role("button", name="New chat").click()
    await expect(other.locator(".turn")).to_have_count(0)
    await ask(other, "From here now")
    await expect(answer(page)).to_have_text("".join(WORDS))


async def test_a_new_chat_is_a_new_session(page: Page, site: Site) -> None:
    """The old one is not shown, and the next question names another session."""
    await ask(page, "One")
    await expect(answer(page)).to_have_text("".join(WORDS))
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".turn")).to_have_count(0)
    await page.get_by_role("button", name="What is the capital of France?").click()
    await expect(answer(page)).to_have_text("".join(WORDS))
    assert len({sent["session_id"] for sent in site.sink.submitted}) == 2


async def test_a_gateway_with_keys_asks_for_one(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    """The dialog comes, the key goes in a subprotocol, and the chat works."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"key-a": "acme"}')
    locked = Site(site.settings.model_copy(update={"api_keys_file": keys}), site.sink)
    await locked.start()
    try:
        page = await browser.new_page()
        await page.goto(locked.url)
        await page.get_by_label("API key").fill("key-a")
        await page.screenshot(path=tmp_path / "key.png")
        await page.keyboard.press("Enter")
        await expect(page.locator("#connection")).to_have_text("Connected")
        await ask(page, "hi")
        await expect(answer(page)).to_have_text("".join(WORDS))
        assert site.sink.tenants == ["acme"]
        await page.close()
    finally:
        await locked.stop()


async def test_the_session_goes_on_with_the_page_closed(page: Page, site: Site) -> None:
    """The tab is closed in mid-answer; a new one, later, has the whole answer."""
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word3")
    await page.close()
    await asyncio.sleep(2.5)  # the answer ends with nobody there
    again = await page.context.new_page()
    await again.goto(site.url)
    await expect(answer(again)).to_have_text("".join(WORDS))
