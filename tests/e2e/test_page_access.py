"""The page for everybody: axe-core's rules in both colour schemes, the keyboard, small and zoomed
windows, other scripts; and the live figures.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Page, expect

from headrace.consumers.lag import Lag, PartitionLag
from headrace.consumers.lag_watch import LagWatch
from tests.e2e.page_site import WHOLE, Site, answer, ask, facts, session

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
]

Picture = Callable[[str], Path]

RICH = """A **water wheel** turns the energy of moving water into rotation:

1. a *head*: the height that the water falls,
2. a `flow`, see [the article](https://en.wikipedia.org/wiki/Water_wheel).
   - overshot
   - undershot

# How much power?

```python
def power_watts(flow_m3_s: float, head_m: float, efficiency: float = 0.7) -> float:
    return efficiency * 1000 * 9.81 * flow_m3_s * head_m
```

| wheel | head | efficiency |
|---|---:|---:|
| overshot | 3 to 10 m | 85 % |
| undershot | below 1.5 m | 35 % |

> The headrace brings the water to the wheel.

---
A direction mark: \u202e
"""


IS_WIDE = """() => {
  const scroll = document.getElementById("scroll");
  const all = document.documentElement;
  return all.scrollWidth > innerWidth || scroll.scrollWidth > scroll.clientWidth;
}"""


class FixedLag:
    """Readings that are always the same."""

    async def read(self) -> Lag:
        partition = PartitionLag(
            topic="headrace.requests", partition=0, records=5, seconds=75.0, tokens=1234,
            committed=0, start=0, end=5,
        )  # fmt: skip
        return Lag((partition,), asyncio.get_running_loop().time())

    async def stop(self) -> None:
        pass


@pytest_asyncio.fixture(loop_scope="session")
async def watched(site: Site) -> AsyncIterator[Site]:
    """A second gateway at the same log, which knows the lag."""
    lag = LagWatch(site.settings, service=FixedLag())
    await lag.start()
    found = Site(site.settings, site.sink, lag=lag)
    await found.start()
    yield found
    await found.stop()
    await lag.stop()


async def assert_accessible(page: Page) -> None:
    """No violation that axe-core knows of, in light and in dark."""
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


def pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


async def test_no_rule_is_broken(page: Page, site: Site, picture: Picture) -> None:
    """The empty page, an answer with everything in it, each dialog, the live panel."""
    await assert_accessible(page)
    site.worker.words = pieces(RICH)
    await ask(page, "Explain how a water wheel works.")
    await expect(facts(page)).to_contain_text("tokens/s")
    await page.get_by_role("button", name="Live figures").click()
    await assert_accessible(page)
    await page.screenshot(path=picture("rich-dark"))
    await page.emulate_media(color_scheme="light")
    await page.screenshot(path=picture("rich"))
    for name in ("Rename", "Delete"):
        await page.locator(".session").hover()
        await page.get_by_title(name).click()
        await assert_accessible(page)
        await page.keyboard.press("Escape")
    await page.keyboard.press("Control+/")
    await assert_accessible(page)


async def test_the_colours_follow_the_system_or_the_switch(page: Page, site: Site) -> None:
    """The choice stays, and is there before anything is shown."""
    ground = "getComputedStyle(document.body).backgroundColor"
    await page.emulate_media(color_scheme="light")
    light = await page.evaluate(ground)
    await page.emulate_media(color_scheme="dark")
    dark = await page.evaluate(ground)
    assert light != dark
    switch = page.locator("#theme")
    await switch.click()
    await expect(switch).to_have_text("Light")
    assert await page.evaluate(ground) == light
    await switch.click()
    await page.emulate_media(color_scheme="light")
    await page.reload()
    await expect(switch).to_have_text("Dark")
    assert await page.evaluate(ground) == dark


async def test_all_of_it_works_with_the_keyboard(page: Page, site: Site) -> None:
    """Shortcuts, the order of focus, and where it goes when something closes."""
    box = page.get_by_label("Message", exact=True)
    await expect(box).to_be_focused()
    site.worker.hold_before(3)
    await page.keyboard.type("First")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("line two")
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn.user .text")).to_have_text("First\nline two")
    await expect(box).to_be_focused()
    await expect(answer(page)).to_contain_text("word2")
    await page.keyboard.press("Escape")
    await expect(facts(page)).to_contain_text("Stopped")
    await page.keyboard.press("Control+Shift+O")
    await expect(page.locator(".turn")).to_have_count(0)
    await expect(box).to_be_focused()
    await page.keyboard.press("Control+Shift+S")
    await expect(page.locator("#side")).to_be_hidden()
    await page.keyboard.press("Control+Shift+S")
    await expect(page.locator("#new")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(session(page, "First line two")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn")).to_have_count(2)
    await expect(session(page, "First line two")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Rename: First line two")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Delete: First line two")).to_be_focused()
    await page.keyboard.press("Shift+Escape")
    await expect(box).to_be_focused()
    await page.keyboard.press("Control+/")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(box).to_be_focused()


async def test_a_screen_reader_is_told_the_answer_once(page: Page, site: Site) -> None:
    """Not each word: a live region that changes with every token cannot be listened to."""
    script = """() => {
      window.said = [];
      const place = document.getElementById("announce");
      new MutationObserver(() => window.said.push(place.textContent)).observe(place, {
        childList: true,
      });
    }"""
    await page.evaluate(script)
    site.worker.hold_before(5)
    await ask(page, "Tell me")
    await expect(page.locator(".turn.assistant")).to_have_attribute("aria-busy", "true")
    await expect(answer(page)).to_contain_text("word4")
    site.worker.hold_before(None)
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.locator(".turn.assistant")).to_have_attribute("aria-busy", "false")
    said = [text.strip() for text in await page.evaluate("window.said")]
    assert said == [WHOLE]
    assert await page.locator("#turns [aria-live]").count() == 0


async def test_small_and_zoomed_windows_need_no_sideways_scrolling(
    page: Page, site: Site, picture: Picture
) -> None:
    """A phone, 200 % on a small screen; long words, long code and right-to-left text."""
    site.worker.words = pieces(f"{RICH}\n\nAverylongword{'x' * 300}\n\n- شكراً عجلة **الماء**\n")
    await ask(page, "كيف تعمل عجلة الماء؟ " + "y" * 200)
    await expect(facts(page)).to_contain_text("tokens/s")
    for name, width, height in (("phone", 390, 760), ("zoom", 590, 380), ("narrow", 320, 600)):
        await page.set_viewport_size({"width": width, "height": height})
        assert not await page.evaluate(IS_WIDE), name
        await expect(page.get_by_label("Message", exact=True)).to_be_in_viewport()
        await page.screenshot(path=picture(name))
    direction = "(it) => getComputedStyle(it).direction"
    assert await answer(page).locator("ul").last.evaluate(direction) == "rtl"
    assert await answer(page).locator("p").first.evaluate(direction) == "ltr"


async def test_the_list_is_a_drawer_on_a_phone(page: Page, site: Site, picture: Picture) -> None:
    """It opens over the chat, and closes with a choice, Escape, or a touch beside it."""
    await ask(page, "Only one")
    await expect(answer(page)).to_have_text(WHOLE)
    await page.set_viewport_size({"width": 390, "height": 760})
    await expect(page.locator("#side")).to_be_hidden()
    await page.emulate_media(reduced_motion="reduce")
    await page.get_by_role("button", name="List of chats").click()
    await expect(session(page, "Only one")).to_be_focused()
    await page.screenshot(path=picture("drawer"))
    await assert_accessible(page)
    await page.keyboard.press("Escape")
    await expect(page.locator("#side")).to_be_hidden()
    await expect(page.get_by_role("button", name="List of chats")).to_be_focused()
    await page.get_by_role("button", name="List of chats").click()
    await page.mouse.click(380, 400)
    await expect(page.locator("#side")).to_be_hidden()


async def test_live_figures_are_asked_while_they_are_seen(
    watched: Site, browser: Browser, picture: Picture
) -> None:
    """Lag, what runs and waits, tokens a second with a chart that has words."""
    page = await browser.new_page(viewport={"width": 1180, "height": 760})
    asked: list[str] = []
    page.on("request", lambda it: asked.append(it.url) if it.url.endswith("/metrics") else None)
    try:
        await page.goto(watched.url)
        await expect(page.locator("#connection")).to_have_text("Connected")
        watched.worker.hold_before(5)
        await ask(page, "A slow one")
        await expect(answer(page)).to_contain_text("word4")
        assert asked == []
        await page.keyboard.press("Control+Shift+L")
        await expect(page.locator("[data-figure=running]")).to_have_text("1")
        await expect(page.locator("[data-figure=waiting]")).to_have_text("4")
        await expect(page.locator("[data-figure=oldest]")).to_have_text("75 s")
        await expect(page.locator("[data-figure=backlog]")).to_have_text("1,234")
        await expect(page.locator("[data-figure=rate]")).to_have_text(re.compile(r"\d+\.\d"))
        chart = page.get_by_role("img", name=re.compile(r"now \d+\.\d, highest \d+\.\d"))
        await expect(chart).to_be_visible()
        await page.screenshot(path=picture("live"))
        await page.keyboard.press("Control+Shift+L")
        num_asked = len(asked)
        await page.clock.install()
        await page.clock.run_for(30_000)
        assert len(asked) == num_asked
    finally:
        await page.close()
