"""The page when the gateway refuses it, lets it go, or cannot be reached; frames that a gateway
seldom sends are put in its mouth.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, WebSocketRoute, expect

from tests.e2e.page_site import WHOLE, Site, answer, ask, facts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
]


class Between:
    """Stands between a page and its gateway, and may answer in the gateway's place."""

    def __init__(self) -> None:
        self.sockets: list[WebSocketRoute] = []
        self.answers: list[dict[str, Any]] = []
        """Error frames for the next `generate` frames, which then do not reach the gateway."""
        self.sent: list[dict[str, Any]] = []

    def stand(self, socket: WebSocketRoute) -> None:
        self.sockets.append(socket)
        server = socket.connect_to_server()

        def on_message(message: str | bytes) -> None:
            frame = json.loads(message)
            self.sent.append(frame)
            if frame["type"] == "generate" and self.answers:
                names = {name: frame[name] for name in ("request_id", "session_id")}
                socket.send(json.dumps({"type": "error"} | names | self.answers.pop(0)))
            else:
                server.send(message)

        socket.on_message(on_message)


@pytest_asyncio.fixture(loop_scope="session")
async def between(context: BrowserContext) -> Between:
    found = Between()
    await context.route_web_socket("**/v1/stream", found.stand)
    return found


def limited(**more: Any) -> dict[str, Any]:
    return {
        "error": {"code": "rate_limited", "message": "too many; try again in 9 s", "type": "x"}
        | more
    }


async def test_a_rate_limit_is_waited_for(between: Between, page: Page, site: Site) -> None:
    """The wait is shown; then the same request goes out again."""
    await page.clock.install()
    await page.reload()
    between.answers = [limited(retry_after_s=75), limited() | {"retry_after_s": 30}]
    await ask(page, "Too soon")
    await expect(facts(page)).to_contain_text("Too many. Asked again in 75 s")
    await page.clock.fast_forward(75_000)
    await expect(facts(page)).to_contain_text("Too many. Asked again in 30 s")
    await page.clock.fast_forward(30_000)
    await expect(answer(page)).to_have_text(WHOLE)
    asked = [frame["request_id"] for frame in between.sent if frame["type"] == "generate"]
    assert len(asked) == 3
    assert len({*asked}) == 1


async def test_a_wait_can_be_given_up(between: Between, page: Page, site: Site) -> None:
    """Nobody was asked: it ends at once, and is not asked later."""
    between.answers = [limited(retry_after_s=600)]
    await ask(page, "Too soon")
    await expect(facts(page)).to_contain_text("Asked again in")
    await page.keyboard.press("Escape")
    await expect(facts(page)).to_have_text("Stopped")
    await page.reload()
    await expect(facts(page)).to_have_text("Stopped")
    assert site.worker.submitted == []


async def test_a_wait_goes_on_after_a_reload(between: Between, page: Page, site: Site) -> None:
    """As long as it was to take."""
    await page.clock.install()
    between.answers = [limited(retry_after_s=50)]
    await ask(page, "Too soon")
    await expect(facts(page)).to_contain_text("Asked again in")
    await page.reload()
    await expect(facts(page)).to_contain_text("Asked again in")
    await page.clock.fast_forward(51_000)
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(site.worker.submitted) == 1


async def test_a_question_that_is_too_large_is_told(
    between: Between, page: Page, site: Site
) -> None:
    """The gateway does not read so far that it could name the request."""
    error = {"code": "invalid_value", "message": "a frame may have 9 bytes at most"}
    between.answers = [{"error": error, "request_id": None, "session_id": None}]
    await ask(page, "Too long")
    await expect(facts(page)).to_have_text("a frame may have 9 bytes at most")
    await ask(page, "Shorter")
    await expect(answer(page)).to_have_text(WHOLE)


async def test_a_limit_without_a_wait_is_an_error(between: Between, page: Page) -> None:
    """It would never pass."""
    between.answers = [limited()]
    await ask(page, "Too much")
    await expect(facts(page)).to_have_text("too many; try again in 9 s")


async def test_a_slow_reader_resumes_from_its_cursor(
    between: Between, page: Page, site: Site
) -> None:
    """Closed with 1013, it goes on with nothing lost, nothing twice."""
    site.worker.hold_before(6)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word5")
    await between.sockets[-1].close(code=1013, reason="slow")
    site.worker.hold_before(None)
    await expect(answer(page)).to_have_text(WHOLE)
    assert len(between.sockets) == 2
    resumed = [frame for frame in between.sent if frame["type"] == "subscribe"][-1]
    assert resumed["cursor"]
    assert len(site.worker.submitted) == 1


async def test_events_that_were_lost_are_asked_for(
    between: Between, page: Page, site: Site
) -> None:
    """A gap in the numbers: the answer itself is read again, from where it was whole."""
    site.worker.hold_before(10)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word9")
    (frame,) = [it for it in between.sent if it["type"] == "generate"]
    later = {
        "id": frame["request_id"],
        "session_id": frame["session_id"],
        "object": "chat.completion.chunk",
        "attempt": 1,
        "sequence_number": 30,
        "choices": [{"delta": {"content": "no"}, "finish_reason": None}],
    }
    between.sockets[-1].send(json.dumps({"type": "event", "cursor": "1.1", "event": later}))
    site.worker.go_on()
    await expect(answer(page)).to_have_text(WHOLE)
    assert between.sent[-1] | {"starting_after": 0} == {
        "type": "subscribe", "session_id": frame["session_id"], "request_id": frame["request_id"],
        "starting_after": 0,
    }  # fmt: skip


async def test_an_answer_that_begins_anew_replaces_what_was_there(
    between: Between, page: Page, site: Site
) -> None:
    """A larger attempt, after a journal was lost; what is left of the smaller one is dropped."""
    site.worker.hold_before(10)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word9")
    (frame,) = [it for it in between.sent if it["type"] == "generate"]
    for number, (text, reason) in enumerate([("Another ", None), ("**text**", "stop")]):
        event = {
            "id": frame["request_id"],
            "session_id": frame["session_id"],
            "object": "chat.completion.chunk",
            "attempt": 2,
            "sequence_number": number,
            "choices": [{"delta": {"content": text}, "finish_reason": reason}],
        }
        message = {"type": "event", "cursor": "1.1", "event": event, "worker": "worker-2"}
        between.sockets[-1].send(json.dumps(message))
    await expect(answer(page)).to_have_text("Another text")
    site.worker.hold_before(None)
    await site.worker.idle()
    await ask(page, "And again")
    await expect(answer(page)).to_have_text(WHOLE)
    await expect(page.locator(".turn.assistant .text").first).to_have_text("Another text")


async def test_offline_and_online_again(page: Page, site: Site, context: BrowserContext) -> None:
    """It says so at once, and goes on at once."""
    site.worker.hold_before(4)
    await ask(page, "A long one")
    await expect(answer(page)).to_contain_text("word3")
    await context.set_offline(True)
    await expect(page.locator("#connection")).to_have_text("Offline")
    site.worker.hold_before(None)
    await site.worker.idle()
    assert await answer(page).text_content() != WHOLE
    await context.set_offline(False)
    await expect(page.locator("#connection")).to_have_text("Connected")
    await expect(answer(page)).to_have_text(WHOLE)


async def test_a_tab_that_was_asleep_looks_whether_its_socket_lives(
    between: Between, page: Page
) -> None:
    """A machine wakes up with sockets that nobody told of their end."""
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    async with asyncio.timeout(5):
        while {"type": "ping"} not in between.sent:  # noqa: ASYNC110 - frames have no event
            await asyncio.sleep(0.02)


def keys_file(folder: Path, **keys: str) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps(keys))
    return path


async def test_a_gateway_with_keys_asks_for_one(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    """A question that was asked before is answered once there is a key, which goes in a
    subprotocol; live figures work as well.
    """
    keys = keys_file(tmp_path, **{"key-a": "acme"})
    locked = Site(site.settings.model_copy(update={"api_keys_file": keys}), site.sink)
    await locked.start()
    page = await browser.new_page()
    try:
        await page.goto(locked.url)
        await expect(page.locator("#connection")).to_have_text("Needs a key")
        await page.locator("#key").press("Escape")
        await ask(page, "hello")
        await expect(facts(page)).to_have_text("Sent once there is a key")
        await page.locator("#key").fill("key-b")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The key that this tab has is not accepted.")).to_be_visible()
        await expect(page.locator("#connection")).to_have_text("Needs a key")
        await page.screenshot(path=tmp_path / "key.png")
        await page.locator("#key").fill("key-a")
        await page.keyboard.press("Enter")
        await expect(page.locator("#connection")).to_have_text("Connected")
        await expect(answer(page)).to_have_text(WHOLE)
        assert site.worker.tenants == ["acme"]
        await page.get_by_role("button", name="Live figures").click()
        await expect(page.locator("[data-figure=readers]")).to_have_text("1")
    finally:
        await page.close()
        await locked.stop()


async def test_a_key_that_is_revoked_is_asked_for_anew(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    """In mid-answer; with the new key the answer goes on, and is whole."""
    settings = site.settings.model_copy(update={"api_keys_file": keys_file(tmp_path, old="acme")})
    locked = Site(settings, site.sink)
    await locked.start()
    page = await browser.new_page()
    try:
        await page.goto(locked.url)
        await page.locator("#key").fill("old")
        await page.keyboard.press("Enter")
        site.worker.hold_before(6)
        await ask(page, "A long one")
        await expect(answer(page)).to_contain_text("word5")
        await locked.stop()
        site.worker.hold_before(None)
        keys_file(tmp_path, new="acme")
        await locked.start()
        await expect(page.get_by_text("The key that this tab has is not accepted.")).to_be_visible()
        await expect(page.locator("#connection")).to_have_text("Needs a key")
        await expect(facts(page)).to_contain_text("The answer goes on once there is a key")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Give a key").click()
        await page.locator("#key").fill("new")
        await page.keyboard.press("Enter")
        await expect(answer(page)).to_have_text(WHOLE)
        assert len(site.worker.submitted) == 1
    finally:
        await page.close()
        await locked.stop()
