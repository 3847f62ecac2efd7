"""The chat page in a real browser, against a real gateway and Kafka: what a person asks, and what
stands there when something breaks. The worker is a scripted fake.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from headrace.schemas.errors import ErrorCode, RequestError
from tests.e2e.page_site import WHOLE, WORDS, Site, answer, ask, facts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
]

Picture = Callable[[str], Path]


async def test_an_answer_streams_and_its_facts_are_shown(
    page: Page, site: Site, picture: Picture
) -> None:
    """Words come one by one; then tokens, speed, time to the first token and the worker."""
    await page.screenshot(path=picture("welcome"))
    site.worker.hold_before(4)
    await ask(page, "Tell me something")
    await expect(answer(page)).to_have_text("word0 word1 word2 word3")
    await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    await page.screenshot(path=picture("streaming"))
    site.worker.hold_before(None)
    await expect(answer(page)).to_have_text(WHOLE)
    for text in ("3 tokens", "tokens/s", "first token", "worker-7f3a"):
        await expect(facts(page)).to_contain_text(text)
    await ask(page, "And more")
    await expect(page.locator(".turn.assistant")).to_have_count(2)
    await expect(answer(page)).to_have_text(WHOLE)
    sessions = {sent["session_id"] for sent in site.worker.submitted}
    assert len(sessions) == 1
    assert [len(sent["messages"]) for sent in site.worker.submitted] == [1, 1]


async def test_stop_ends_the_answer_and_the_chat_goes_on(
    page: Page, site: Site, picture: Picture
) -> None:
    """The button cancels; the text that came stays; the next question is answered."""
    site.worker.hold_before(3)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word2")
    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(facts(page)).to_contain_text("Stopped")
    await expect(answer(page)).to_have_text("word0 word1 word2")
    await page.screenshot(path=picture("stopped"))
    assert len(site.worker.cancelled) == 1
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await ask(page, "Again")
    await expect(answer(page)).to_have_text(WHOLE)


async def test_a_reload_in_mid_answer_goes_on(page: Page, site: Site, picture: Picture) -> None:
    """Reloaded twice while words come: none missing, none twice, one request."""
    site.worker.hold_before(4)
    await ask(page, "A long one")
    for held, following in ((4, 13), (13, None)):
        so_far = "".join(WORDS[:held]).strip()
        await expect(answer(page)).to_have_text(so_far)
        await page.reload()
        await expect(page.locator("#connection")).to_have_text("Connected")
        await expect(answer(page)).to_have_text(so_far)
        await expect(facts(page)).to_have_text("worker-7f3a")
        await page.screenshot(path=picture(f"reloaded-{held}"))
        site.worker.hold_before(following)
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(site.worker.submitted) == 1
    assert site.worker.cancelled == []


async def test_a_gateway_restart_in_mid_answer_goes_on(
    page: Page, site: Site, picture: Picture
) -> None:
    """The page says that it reconnects, and then has the words that came meanwhile."""
    site.worker.hold_before(6)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word5")
    await site.stop()
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    await expect(facts(page)).to_contain_text("The gateway is away")
    await page.screenshot(path=picture("away"))
    site.worker.hold_before(None)
    await site.worker.idle()
    await site.start()
    await expect(page.locator("#connection")).to_have_text("Connected")
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(site.worker.submitted) == 1


async def test_a_question_asked_while_away_is_sent_once_it_is_back(page: Page, site: Site) -> None:
    """Nothing that was typed is lost."""
    await site.stop()
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    await ask(page, "Are you there?")
    await site.start()
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(site.worker.submitted) == 1


async def test_markup_in_an_answer_is_shown_as_text(
    page: Page, site: Site, picture: Picture
) -> None:
    """No element is made of the HTML that a model, or a user, writes."""
    evil = "<script>window.hacked=1</script> <img src=x onerror='window.hacked=1'>"
    link = "[click](javascript:window.hacked=1)"
    site.worker.words = [evil[:10], evil[10:], "\n\n", link, "\n\n```html\n", evil, "\n```\n"]
    await ask(page, evil)
    await expect(answer(page).locator("p").nth(1)).to_have_text(link)
    await expect(answer(page).locator("p").first).to_have_text(evil)
    await expect(answer(page).locator("code")).to_have_text(evil)
    await expect(page.locator(".turn.user .text")).to_have_text(evil)
    await page.screenshot(path=picture("script"))
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("#turns :is(script, img, a)").count() == 0


async def test_an_error_is_told_and_the_next_question_works(page: Page, site: Site) -> None:
    """A `failed` event is a sentence under the answer."""
    site.worker.error = RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "the prompt is too long")
    await ask(page, "x")
    await expect(facts(page)).to_contain_text("the prompt is too long")
    site.worker.error = None
    await ask(page, "y")
    await expect(answer(page)).to_have_text(WHOLE)


async def test_the_answer_goes_on_with_the_page_closed(page: Page, site: Site) -> None:
    """The tab is closed in mid-answer; a new one, later, has the whole answer."""
    site.worker.hold_before(4)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word3")
    await page.close()
    site.worker.hold_before(None)
    await site.worker.idle()
    again = await page.context.new_page()
    await again.goto(site.url)
    await expect(answer(again)).to_have_text(WHOLE)


async def test_an_answer_that_waits_for_a_worker_can_be_stopped(page: Page, site: Site) -> None:
    """The next question need not wait until a worker has confirmed it."""
    site.worker.silent = True
    await ask(page, "Nobody there")
    await expect(facts(page)).to_have_text("Waiting for a worker")
    await page.keyboard.press("Escape")
    await expect(facts(page)).to_have_text("Stopping…")
    site.worker.silent = False
    await ask(page, "Somebody now")
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(site.worker.cancelled) == 1


async def test_an_answer_that_pauses_says_so_and_who_went_on(
    page: Page, site: Site, picture: Picture
) -> None:
    """As long as no worker writes, and then both names."""
    await page.clock.install()
    await page.reload()
    site.worker.hold_before(12)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word11")
    await page.clock.fast_forward(6_000)
    await expect(facts(page)).to_contain_text("Paused")
    await page.screenshot(path=picture("paused"))
    site.worker.worker = "worker-9c21"
    site.worker.go_on()
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(facts(page)).to_contain_text("worker-7f3a → worker-9c21")
