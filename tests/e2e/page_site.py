"""A gateway with its page for the browser tests, and what they do with the page. The worker is a
scripted fake.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Locator, Page

from headrace.consumers.gateway import build_app
from headrace.consumers.lag_watch import LagWatch
from headrace.consumers.request_sink import RequestSink
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.processes import free_port
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import ScriptedSink
from tests.unit.consumers.running import running

WORDS = [f"word{number} " for number in range(40)]
WHOLE = "".join(WORDS).strip()
WORKER = "worker-7f3a"
KEPT = "headrace.chat.2."
"""How the names of chats in the browser's storage begin."""


@dataclass
class Site:
    """A gateway that can be stopped and started again at the same address."""

    settings: Settings
    sink: RequestSink
    port: int = field(default_factory=free_port)
    lag: LagWatch | None = None
    _parts: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def worker(self) -> ScriptedSink:
        """The scripted worker."""
        assert isinstance(self.sink, ScriptedSink)
        return self.sink

    async def start(self) -> None:
        log = ResponseLog(self.settings)
        await log.start()
        self._parts.push_async_callback(log.stop)
        app = build_app(self.settings, log, self.sink, lag=self.lag)
        await self._parts.enter_async_context(running(app, self.settings, self.port))

    async def stop(self) -> None:
        await self._parts.aclose()


def reset(sink: ScriptedSink) -> None:
    """As it was before the first test."""
    sink.words, sink.pause_s, sink.worker = list(WORDS), 0.0, WORKER
    sink.error, sink.silent = None, False
    sink.hold_before(None)
    for seen in (sink.submitted, sink.cancelled, sink.deleted, sink.tenants, sink.traces):
        seen.clear()


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


def answer(page: Page) -> Locator:
    """The last answer's text."""
    return page.locator(".turn.assistant .text").last


def facts(page: Page) -> Locator:
    """What is said of the last answer."""
    return page.locator(".facts").last


def session(page: Page, title: str) -> Locator:
    """The button that shows a chat of the list."""
    return page.locator(".session .open", has_text=title)


async def stored(page: Page) -> dict[str, Any]:
    """What the browser keeps, by name."""
    found: dict[str, Any] = await page.evaluate("({...localStorage})")
    return found
