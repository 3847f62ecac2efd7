"""Requests through the gateway's OpenAI-compatible endpoints, each a stream of its own.

The gateway has applied the reader's rule already, so that events that were lost or doubled behind
it show as an error of its own or as wrong numbers here.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import orjson

from headrace.deploy.bench.exchange import Exchange
from headrace.deploy.bench.way import Observer, WayError
from headrace.schemas.errors import HeadraceError

CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 60.0
"""The gateway says that it lives every 15 s."""

_DONE = "[DONE]"


class GatewayError(HeadraceError):
    """There is no gateway at the address, or it is not ready."""


class HttpWay:
    """See `Way`."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport`: httpx's own by default."""
        self._transport = transport
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._client: httpx.AsyncClient | None = None
        self._observer: Observer | None = None

    async def start(self, observer: Observer) -> None:
        """Look whether the gateway is ready. Raises: GatewayError."""
        self._observer = observer
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        self._client = httpx.AsyncClient(
            base_url=self._url,
            transport=self._transport,
            headers=headers,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )
        try:
            answer = await self._client.get("/readyz", timeout=CONNECT_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise GatewayError(f"{self._url}: {problem or type(problem).__name__}") from problem
        if answer.status_code != httpx.codes.OK:
            raise GatewayError(f"{self._url}: the gateway is not ready ({answer.status_code})")

    async def stop(self) -> None:
        """See `Way`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(self, exchange: Exchange, body: dict[str, Any]) -> None:
        """See `Way`. Cancel: the connection closes, and the gateway cancels the generation."""
        path = "/v1/completions" if body.get("prompt") is not None else "/v1/chat/completions"
        content = {
            **body,
            "session_id": exchange.turn.session.session_id,
            "stream_options": {"include_usage": True},
        }
        try:
            await self._follow(exchange, path, content)
        except httpx.TimeoutException as problem:
            raise WayError("timeout") from problem
        except (httpx.HTTPError, OSError) as problem:
            raise WayError("connection") from problem
        if exchange.is_open:
            raise WayError("stream_ended")

    async def cancel(self, exchanges: Sequence[Exchange]) -> bool:
        """Nothing to be sent: who leaves has cancelled."""
        return False

    async def _follow(self, exchange: Exchange, path: str, content: dict[str, Any]) -> None:
        if self._client is None or self._observer is None:
            raise RuntimeError("the way is not started")
        async with self._client.stream("POST", path, json=content) as answer:
            if answer.status_code != httpx.codes.OK:
                raise WayError(_refusal(answer.status_code, await answer.aread()))
            async for event in _events(answer):
                self._observer.saw(exchange, event)
                if not exchange.is_open:
                    return


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The response events (contract §3) in a stream. The last one waits for its usage, which the
    gateway writes along with it. Raises: WayError.
    """
    last: dict[str, Any] | None = None
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == _DONE:
            break
        event = _decoded(data)
        if not event["choices"]:
            last = None if last is None else last | {"usage": event.get("usage")}
        elif event["choices"][0].get("finish_reason") is None:
            yield event
        else:
            last = event
    if last is not None:
        yield last


def _decoded(data: str) -> dict[str, Any]:
    try:
        event = orjson.loads(data)
        if error := event.get("error"):
            raise WayError(str(error["code"]))
        choices = event["choices"]
        is_ours = {"attempt", "sequence_number"} <= event.keys()
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as problem:
        raise WayError("no_response_event") from problem
    if not is_ours:
        raise WayError("no_response_event")
    for choice in choices:
        if "text" in choice:  # of /v1/completions
            choice["delta"] = {"content": choice.pop("text")}
    return dict(event)


def _refusal(status: int, body: bytes) -> str:
    """The code in an error's body, else its status."""
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"http_{status}"
