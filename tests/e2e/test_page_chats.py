"""The page's list of chats: what is kept in the browser, in several tabs, and without room."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from tests.e2e.page_site import KEPT, WHOLE, Site, answer, ask, facts, session, stored

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
]


def conversation(
    name: str, *, turns: int = 1, text: str = "Yes.", age_ms: int = 0
) -> dict[str, Any]:
    """One that this browser had before, as it is stored."""
    said = []
    for number in range(turns):
        request_id = f"{name}-{number}"
        said += [
            {"role": "user", "text": f"{name} {number}", "requestId": request_id},
            {"role": "assistant", "text": text, "requestId": request_id, "attempt": 1, "next": 1,
             "done": True, "accepted": True, "workers": []},
        ]  # fmt: skip
    return {"sessionId": name, "title": None, "turns": said, "cursor": None, "updatedMs": age_ms}


async def begin_with(page: Page, entries: dict[str, Any]) -> None:
    """Open the page anew, with these entries in its storage and nothing else."""
    script = """(entries) => {
      localStorage.clear();
      sessionStorage.clear();
      for (const [name, value] of Object.entries(entries)) localStorage.setItem(name, value);
    }"""
    url = page.url
    await page.goto(f"{url}healthz")
    texts = {name: json.dumps(value) for name, value in entries.items()}
    await page.evaluate(script, texts)
    await page.goto(url)
    await expect(page.locator("#connection")).to_have_text("Connected")


async def test_chats_stand_in_a_list_and_are_whole_when_one_comes_back(
    page: Page, site: Site
) -> None:
    """The first question is the title; an answer that is not shown goes on, and says so."""
    site.worker.hold_before(4)
    await ask(page, "First   question\nof two lines")
    await expect(answer(page)).to_contain_text("word3")
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".turn")).to_have_count(0)
    await expect(session(page, "First question of two lines")).to_contain_text("writing…")
    site.worker.hold_before(None)
    await page.get_by_role("button", name="What is the capital of France?").click()
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.get_by_role("heading", level=1)).to_have_text(
        "What is the capital of France?"
    )
    await session(page, "First question").click()
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.locator(".turn")).to_have_count(2)
    await expect(page.locator("[aria-current]")).to_contain_text("First question of two lines")
    assert len({sent["session_id"] for sent in site.worker.submitted}) == 2
    await page.reload()
    await expect(page.locator(".turn.user .text")).to_have_text("First   question\nof two lines")
    await expect(page.locator(".session")).to_have_count(2)


async def test_an_answer_that_was_not_shown_is_gone_on_with_after_a_reload(
    page: Page, site: Site
) -> None:
    """It is followed in the background, from where it was."""
    site.worker.hold_before(6)
    await ask(page, "In the background")
    await expect(answer(page)).to_contain_text("word5")
    await page.get_by_role("button", name="New chat").click()
    await page.reload()
    await expect(page.locator(".turn")).to_have_count(0)
    await expect(session(page, "In the background")).to_contain_text("writing…")
    site.worker.hold_before(None)
    await expect(session(page, "In the background")).not_to_contain_text("writing…")
    await session(page, "In the background").click()
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(site.worker.submitted) == 1


async def test_a_chat_is_renamed(page: Page, site: Site) -> None:
    """The name stays, and is text."""
    await ask(page, "Old name")
    await expect(answer(page)).to_have_text(WHOLE)
    row = page.locator(".session")
    await row.hover()
    await row.get_by_title("Rename").click()
    await page.get_by_label("Name", exact=True).fill("<b>New</b> name")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("<b>New</b> name")
    await page.reload()
    await expect(page.locator(".session .title")).to_have_text("<b>New</b> name")


async def test_a_deleted_chat_is_gone_here_and_at_the_gateway(page: Page, site: Site) -> None:
    """Its answer is stopped; a gateway that is away is told later."""
    told: list[str] = []

    async def forget(route: Route) -> None:
        told.append(route.request.url.rpartition("/")[2])
        if len(told) == 1:
            await route.fulfill(status=503, body="{}")
        else:
            await route.continue_()

    await page.route("**/v1/sessions/*", forget)
    site.worker.hold_before(4)
    await ask(page, "To be deleted")
    await expect(answer(page)).to_contain_text("word3")
    row = page.locator(".session")
    await row.hover()
    await row.get_by_title("Delete").click()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".session")).to_have_count(1)
    await row.hover()
    await row.get_by_title("Delete").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator(".session")).to_have_count(0)
    await expect(page.locator(".turn")).to_have_count(0)
    await site.worker.idle()
    assert not any(name.startswith(KEPT) for name in await stored(page))
    assert len(site.worker.cancelled) == 1
    assert site.worker.deleted == []
    async with page.expect_response("**/v1/sessions/*"):
        await page.reload()
    session_id = site.worker.submitted[0]["session_id"]
    assert site.worker.deleted == [("default", session_id)]
    assert told == [session_id, session_id]
    await expect(page.locator(".session")).to_have_count(0)


async def test_tabs_share_the_list_and_each_shows_its_own(page: Page, site: Site) -> None:
    """I9: two tabs on one chat both have all of it; a deleted one leaves both."""
    site.worker.hold_before(2)
    await ask(page, "For both")
    await expect(answer(page)).to_contain_text("word1")
    other = await page.context.new_page()
    await other.goto(site.url)
    await expect(answer(other)).to_contain_text("word1")
    site.worker.hold_before(None)
    await expect(page.get_by_role("heading", level=1)).to_have_text("For both")
    for tab in (page, other):
        await expect(answer(tab)).to_have_text(WHOLE)
    await ask(other, "From the other tab")
    await expect(page.locator(".turn.user .text")).to_have_text(["For both", "From the other tab"])
    await expect(answer(page)).to_have_text(WHOLE)
    await page.bring_to_front()  # clicks in a tab behind are slow
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Only here")
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(session(other, "Only here")).to_be_visible()
    await expect(other.locator(".turn")).to_have_count(4)
    row = page.locator(".session", has_text="For both")
    await row.hover()
    await row.get_by_title("Delete").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(other.locator(".session")).to_have_count(1)
    await expect(other.get_by_role("heading", level=1)).to_have_text("Only here")


async def test_the_one_chat_of_an_older_page_is_the_first_of_the_list(page: Page) -> None:
    """What was stored before there was a list is not lost."""
    old = conversation("web-old", turns=2)
    old["turns"][1]["worker"] = "worker-1"
    del old["title"], old["updatedMs"], old["turns"][1]["workers"]
    await begin_with(page, {"headrace.chat.1": old})
    await expect(page.get_by_role("heading", level=1)).to_have_text("web-old 0")
    await expect(page.locator(".turn")).to_have_count(4)
    await expect(page.locator(".facts").first).to_have_text("worker-1")
    assert {KEPT + "web-old"} == {name for name in await stored(page) if ".chat." in name}


async def test_what_cannot_be_read_is_no_chat(page: Page, site: Site) -> None:
    """Entries that are broken, or from somewhere else, do not stop the page."""
    broken = {KEPT + "a": None, KEPT + "b": {"sessionId": 1}, KEPT + "c": {"sessionId": "c"},
              KEPT + "d": {"sessionId": "d", "turns": [{"role": "x"}]}}  # fmt: skip
    await begin_with(page, broken)
    await expect(page.locator(".session")).to_have_count(0)
    await ask(page, "And it works")
    await expect(answer(page)).to_have_text(WHOLE)


async def test_hundreds_of_turns_are_shown_and_gone_on_with(page: Page, site: Site) -> None:
    """At their end, and from there to the first."""
    text = "Some **words** and\n\n- a list\n- of two\n\n```\ncode\n```"
    entry = conversation("long", turns=400, text=text)
    await begin_with(page, {KEPT + "long": entry})
    await expect(page.locator(".turn")).to_have_count(800)
    await expect(page.get_by_text("long 399")).to_be_in_viewport()
    await ask(page, "One more")
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.locator(".turn")).to_have_count(802)
    await expect(facts(page)).to_be_in_viewport()
    await page.locator("#scroll").evaluate("(it) => { it.scrollTop = 0; }")
    await page.get_by_role("button", name="To the newest").click()
    await expect(facts(page)).to_be_in_viewport()


async def test_looking_through_many_chats_needs_few_subscriptions(page: Page, site: Site) -> None:
    """A gateway lets one socket follow a hundred things; the page begins a new socket before."""
    entries = {f"{KEPT}s{age}": conversation(f"s{age}", age_ms=age) for age in range(1, 100)}
    await begin_with(page, entries)
    await expect(page.locator(".session")).to_have_count(99)
    await page.evaluate(
        """() => {
          const nth = (place) => document.querySelectorAll(".open")[place];
          for (let place = 0; place < 99; place += 1) nth(place).click();
        }"""
    )
    await expect(page.get_by_role("heading", level=1)).to_have_text("s1 0")
    await expect(page.locator("#connection")).to_have_text("Connected")
    await ask(page, "After all of them")
    await expect(answer(page)).to_have_text(WHOLE)


async def test_the_oldest_chats_make_room(page: Page, site: Site) -> None:
    """Storage holds some 5 MB: five chats of one are there, and a new one is kept as well."""
    text = "x" * 990_000
    entries = {
        f"{KEPT}s{age}": conversation(f"s{age}", text=text, age_ms=1000 - age) for age in range(5)
    }
    await begin_with(page, entries)
    await expect(page.locator(".session")).to_have_count(5)
    await page.get_by_role("button", name="New chat").click()
    site.worker.words = ["y" * 100_000] * 3
    await ask(page, "New")
    await expect(facts(page)).to_contain_text("tokens/s")
    await expect(session(page, "s4")).to_have_count(0)
    await expect(session(page, "s0")).to_have_count(1)
    await expect(page.locator("#full")).to_be_hidden()
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("New")


async def test_a_chat_that_does_not_fit_is_told(
    page: Page, site: Site, picture: Callable[[str], Path]
) -> None:
    """It goes on; only a reload would lose it."""
    await page.evaluate("localStorage.setItem('other', 'x'.repeat(5 * 1024 * 1024 - 100))")
    await ask(page, "No room")
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.locator("#full")).to_be_visible()
    await page.screenshot(path=picture("full"))


async def test_a_browser_without_storage_has_a_chat(context: BrowserContext, site: Site) -> None:
    """Some forbid it; then nothing is kept."""
    page = await context.new_page()
    deny = """for (const name of ["localStorage", "sessionStorage"]) {
      const get = () => { throw new DOMException("no", "SecurityError"); };
      Object.defineProperty(window, name, { get });
    }"""
    await page.add_init_script(deny)
    await page.goto(site.url)
    await ask(page, "Without")
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.locator("#full")).to_be_hidden()
