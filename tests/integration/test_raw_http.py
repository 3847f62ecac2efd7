"""Bytes that no client library would send: each connection gets an answer or is cut, none hangs,
and the next caller is served.
"""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace.schemas.settings import Settings
from tests.gateway import ScriptedGateway, scripted_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BODY = b'{"messages":[{"role":"user","content":"hi"}]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(kafka_bootstrap: str) -> AsyncIterator[ScriptedGateway]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=f"t{uuid4().hex[:12]}", model="m")
    async with scripted_gateway(settings) as running:
        yield running


async def exchange(gateway: ScriptedGateway, data: bytes, *, expected: bytes = b"") -> bytes:
    """Send `data`; what comes back until `expected` has come, or else until the server closes."""
    host, _, port = gateway.address.partition(":")
    reader, out = await asyncio.open_connection(host, int(port))
    found = b""
    try:
        async with asyncio.timeout(8):
            out.write(data)
            if not expected:
                out.write_eof()
            while piece := await reader.read(65_536):
                found += piece
                if expected and expected in found:
                    break
    except ConnectionError:
        pass  # cut is an answer too
    finally:
        out.transport.abort()
    return found


def length(number: bytes) -> bytes:
    return POST + b"Content-Length: " + number + b"\r\n\r\n"


BROKEN = {
    "length of letters": length(b"ten") + BODY,
    "negative length": length(b"-5") + BODY,
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 45\r\n\r\n" + BODY,
    "length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "garbage for a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n\r\n",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a body that ends early": length(b"1000") + BODY,
    "a header without end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 300_000,
    "a header with a line break": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\rb: c\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_broken_bytes_produce_nothing(gateway: ScriptedGateway, data: bytes) -> None:
    """A 400 or a cut; no request reaches Kafka, and the next connection is served."""
    found = await exchange(gateway, data)
    assert found == b"" or found.startswith((b"HTTP/1.1 4", b"HTTP/1.1 3")) or b"200 OK" in found
    assert gateway.sink.submitted == []
    assert b'"object":"list"' in await exchange(gateway, GET, expected=b"]}")


async def test_pipelined_calls_are_answered_in_order(gateway: ScriptedGateway) -> None:
    """Three calls in one write; the middle one is refused and does not end the connection."""
    bad = length(b"2") + b"{}"
    found = await exchange(
        gateway, GET + bad + GET.replace(b"/v1/models", b"/healthz"), expected=b'"ok"}'
    )
    places = [found.index(text) for text in (b"200 OK", b"400 Bad Request", b'"status":"ok"')]
    assert places == sorted(places)


async def test_a_client_that_waits_for_100_gets_it(gateway: ScriptedGateway) -> None:
    """`Expect: 100-continue`, then the body; too large a one is refused before it is sent."""
    head = POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    found = await exchange(gateway, head % len(BODY) + BODY, expected=b'"usage"')
    assert b"chat.completion" in found
    size = gateway.settings.max_request_bytes + 1
    refused = await exchange(gateway, head % size, expected=b"param")
    assert b" 413 " in refused.split(b"\r\n", 1)[0]
    gateway.sink.submitted.clear()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"HEAD", b"/v1/models", b"200"),
        (b"HEAD", b"/healthz", b"200"),
        (b"OPTIONS", b"/v1/chat/completions", b"405"),
        (b"GET", b"/v1/chat/completions", b"405"),
        (b"PUT", b"/v1/models", b"405"),
        (b"GET", b"/v1/nothing", b"404"),
        (b"GET", b"/v1/models/", b"404"),
        (b"POST", b"/v1/chat/completions/", b"307"),
        (b"GET", b"/openapi.json", b"200"),
    ],
)
async def test_methods_and_paths(
    gateway: ScriptedGateway, method: bytes, path: bytes, status: bytes
) -> None:
    """Refusals in OpenAI's form; 405 says what is allowed; every answer names its call."""
    data = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head, _, body = (await exchange(gateway, data)).partition(b"\r\n\r\n")
    assert head.split(b" ", 2)[1] == status
    assert b"x-request-id: req_" in head.lower()
    assert (b"allow: " in head.lower()) == (status == b"405")
    assert body.startswith(b'{"error"') == (status in (b"404", b"405"))
    assert body == b"" or method != b"HEAD"
