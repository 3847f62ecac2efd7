"""Requests through the gateway, against made-up answers of it."""

import json
from typing import Any

import httpx
import pytest

from headrace.deploy.bench.exchange import Exchange, Outcome
from headrace.deploy.bench.http_way import GatewayError, HttpWay
from headrace.deploy.bench.way import WayError
from tests.loads import chunk, last, turn


class Observed:
    """Hands events on as a run does, at the time of their number."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def saw(self, exchange: Exchange, event: dict[str, Any]) -> None:
        self.now_s += 1
        exchange.take(event, self.now_s)


def sse(*events: dict[str, Any] | str) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return b": keep-alive\n\n" + "".join(f"data: {line}\n\n" for line in lines).encode()


async def asked(
    answer: httpx.Response | Exception, body: dict[str, Any]
) -> tuple[Exchange, httpx.Request]:
    """What comes of one request; a ready gateway answers it with `answer`."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            return httpx.Response(200)
        seen.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    way = HttpWay("http://gateway/", api_key="k", transport=httpx.MockTransport(handle))
    exchange = Exchange(turn(name="s1"), "r", sent_s=0.0)
    await way.start(Observed())
    try:
        await way.ask(exchange, body)
    finally:
        await way.stop()
    return exchange, seen[0]


def without_usage(event: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last event as the gateway writes it, usage in a chunk of its own behind it."""
    return event | {"usage": None}, event | {"choices": []}


async def test_an_answer_is_followed_to_its_usage() -> None:
    """Which comes behind the last event; the request names its session."""
    content = sse(chunk(0, "a"), *without_usage(last(1, "b", 2)), "[DONE]")
    exchange, request = await asked(httpx.Response(200, content=content), {"messages": []})
    assert (exchange.outcome, exchange.num_tokens) == (Outcome.FINISHED, 2)
    assert (exchange.prompt_tokens, exchange.first_s) == (7, 1.0)
    assert request.url.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k"
    assert json.loads(request.content)["session_id"] == "s1"


async def test_a_raw_prompt_has_its_own_endpoint() -> None:
    """Its text is in another place."""
    event, usage = without_usage(last(0, "ab", 2))
    event["choices"][0] = {"index": 0, "text": "ab", "finish_reason": "stop", "token_ids": [1, 2]}
    content = sse(event, usage, "[DONE]")
    exchange, request = await asked(httpx.Response(200, content=content), {"prompt": "x"})
    assert (exchange.outcome, exchange.first_s) == (Outcome.FINISHED, 1.0)
    assert request.url.path == "/v1/completions"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(429, json={"error": {"code": "rate_limited"}}), "rate_limited"),
        (httpx.Response(502, content=b"<html>"), "http_502"),
        (httpx.Response(500, json=["x"]), "http_500"),
        (httpx.Response(200, content=sse({"error": {"code": "expired"}}, "[DONE]")), "expired"),
        (httpx.Response(200, content=sse(chunk(0, "a"))), "stream_ended"),
        (httpx.Response(200, content=sse(chunk(0, "a"), "[DONE]")), "stream_ended"),
        (httpx.Response(200, content=sse("{")), "no_response_event"),
        (httpx.Response(200, content=sse({"choices": []})), "no_response_event"),
        (httpx.ConnectError("refused"), "connection"),
        (httpx.ReadTimeout("silence"), "timeout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_goes_wrong_has_a_code(answer: httpx.Response | Exception, code: str) -> None:
    """The gateway's where it gives one."""
    with pytest.raises(WayError, match=f"^{code}$"):
        await asked(answer, {"messages": []})


async def test_lost_events_are_seen_here_too() -> None:
    """The numbers tell."""
    content = sse(chunk(0, "a"), chunk(2, "c"), "[DONE]")
    exchange, _ = await asked(httpx.Response(200, content=content), {"messages": []})
    assert (exchange.outcome, exchange.code) == (Outcome.WRONG, "events_lost")


@pytest.mark.parametrize("url", ["http://gateway", "gateway:80", "http://[1"])
async def test_a_gateway_that_is_not_there_is_said_at_once(url: str) -> None:
    """Before the load begins."""

    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    way = HttpWay(url, transport=httpx.MockTransport(handle))
    try:
        with pytest.raises(GatewayError):
            await way.start(Observed())
    finally:
        await way.stop()


async def test_a_gateway_that_is_not_ready_is_said_at_once() -> None:
    """It would refuse everything."""
    way = HttpWay("http://g", transport=httpx.MockTransport(lambda _: httpx.Response(503)))
    with pytest.raises(GatewayError, match=r"not ready \(503\)"):
        await way.start(Observed())
    await way.stop()
