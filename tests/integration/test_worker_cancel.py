"""Cancels on a real worker, with an answer that takes it seconds."""

from typing import Any

import pytest

from tests.pipeline import Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def request(name: str, text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"request_id": name, "messages": messages, "max_tokens": max_tokens, **more}


def cancel(name: str, session: str) -> dict[str, str]:
    return {"action": "cancel", "request_id": name, "session_id": session}


async def test_cancel_ends_a_running_a_waiting_and_an_unread_request(
    slow_pipeline: Pipeline,
) -> None:
    """Each gets one last event with the finish reason cancelled; the session goes on behind it."""
    await slow_pipeline.start_worker()
    replies = slow_pipeline.replies
    await slow_pipeline.control(cancel("early", "s2"))
    await slow_pipeline.ask(request("running", "tell me", 4000, ignore_eos=True), key="s1")
    await slow_pipeline.ask(request("waiting", "next", 5), key="s1")
    await slow_pipeline.ask(request("early", "hi", 5), key="s2")
    await slow_pipeline.until(lambda: len(replies["running"].events) > 0)
    await slow_pipeline.control(cancel("waiting", "s1"))
    await slow_pipeline.control(cancel("running", "other"))
    await slow_pipeline.finished(["waiting"], timeout_s=2)
    assert not replies["running"].reader.finished
    await slow_pipeline.control(cancel("running", "s1"))
    await slow_pipeline.finished(["running", "early"], timeout_s=2)
    for name in ("running", "waiting", "early"):
        assert replies[name].finish_reason == "cancelled"
    assert replies["early"].last["usage"]["completion_tokens"] == 0
    after = await slow_pipeline.answer(request("after", "and now?", 4, turn=2), key="s1")
    assert after.finish_reason == "length"
