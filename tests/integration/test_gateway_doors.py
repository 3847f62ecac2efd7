"""What stands between the gateway and strangers: TLS, origins, bounds on what they send, and logs
that tell nothing.
"""

import asyncio
import base64
import signal
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from websockets.asyncio.client import connect

from headrace.consumers import bodies, http_protocol
from headrace.deploy.processes import free_port
from headrace.deploy.supervisor import answers
from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings, child_environment
from tests.unit.consumers.doubles import RecordingSink
from tests.unit.consumers.running import serving
from tests.unit.consumers.test_tls import write_pair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

PAGE = "https://app.example"
KEY, PROMPT = "key-nobody-may-see", "prompt-nobody-may-see"
PASSWORD = "password-nobody-may-see"


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    found = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, allowed_origins=PAGE)
    await ensure_topics(found, partitions=3)
    return found


@pytest.fixture
async def address(settings: Settings) -> AsyncIterator[str]:
    """A gateway without keys, which lets pages of `PAGE` in."""
    async with serving(settings, RecordingSink()) as (_, found):
        yield found


async def test_pages_of_named_origins_may_call_and_others_may_not(address: str) -> None:
    """A preflight, a call, a WebSocket; and a name that was pointed here, which sends no Origin."""
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        asked = {"origin": PAGE, "access-control-request-method": "POST"}
        preflight = await http.options("/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-origin"] == PAGE
        answer = await http.get("/v1/models", headers={"origin": PAGE})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["x-content-type-options"] == "nosniff"
        shown = answer.headers["access-control-expose-headers"].split(", ")
        assert {"retry-after", "x-ratelimit-remaining-requests"} <= set(shown)
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            refused = await http.get("/v1/models", headers=headers)
            assert refused.status_code == 401
            assert "access-control-allow-origin" not in refused.headers
    async with connect(f"ws://{address}/v1/stream", origin=PAGE):  # type: ignore[arg-type]
        pass


async def test_a_body_that_is_compressed_or_never_ends_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """415 and 408, in OpenAI's form."""
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.2)
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        packed = await http.post(
            "/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"}
        )
        assert (packed.status_code, packed.json()["error"]["code"]) == (415, "invalid_value")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"
    )
    async with asyncio.timeout(5):
        late = await reader.readuntil(b"}}")
    writer.close()
    assert late.startswith(b"HTTP/1.1 408")
    assert b'"code":"invalid_value"' in late


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"GET / HT"])
async def test_a_head_that_does_not_end_closes_the_connection(
    address: str, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Also where nothing is sent at all."""
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_head_without_measure_is_refused(address: str) -> None:
    """One header of many megabytes is cut off early."""
    host, _, port = address.partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nlong: ")

    async def go_on() -> None:
        for _ in range(200):
            writer.write(b"x" * 65_536)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await go_on()
    writer.close()


async def test_https_wss_and_grpc_with_a_certificate_and_nothing_secret_in_the_logs(
    settings: Settings, tmp_path: Path
) -> None:
    """The real process at debug level: three doors, keys in each of them, a prompt; then its
    log.
    """
    authority = trustme.CA()
    certificate, key = write_pair(tmp_path, authority)
    keys = tmp_path / "keys.json"
    keys.write_text(f'{{"{KEY}": "acme"}}')
    port, grpc_port = free_port(), free_port()
    flags = {
        "http-port": port,
        "grpc-port": grpc_port,
        "tls-cert-file": certificate,
        "tls-key-file": key,
        "api-keys-file": keys,
        "query-api-key": "on",
        "log-level": "debug",
    }
    with (tmp_path / "log").open("wb") as log_file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.deploy.cli", "gateway"),
            *(f"--{name}={value}" for name, value in flags.items()),
            env=child_environment(
                kafka=settings.kafka, topic_prefix=settings.topic_prefix, kafka_password=PASSWORD
            ),
            stderr=log_file,
            stdout=PIPE,
        )
        try:
            async with asyncio.timeout(30):
                while not await asyncio.to_thread(  # noqa: ASYNC110 - a process has no event
                    answers, "127.0.0.1", port, "/readyz", tls=True
                ):
                    await asyncio.sleep(0.1)
            await _through_all_doors(port, grpc_port, authority)
        finally:
            process.send_signal(signal.SIGTERM)
            await process.communicate()
    text = (tmp_path / "log").read_text()
    assert process.returncode == 0
    assert "/v1/stream?api_key=***" in text
    for secret in (KEY, PROMPT, PASSWORD, _base64(KEY)):
        assert secret not in text


def _base64(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


async def _through_all_doors(port: int, grpc_port: int, authority: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    body = {"messages": [{"role": "user", "content": PROMPT}], "background": True}
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(verify=trusting, headers=headers) as http:
        models = await http.get(f"https://127.0.0.1:{port}/v1/models")
        assert models.status_code == 200
        with pytest.raises(httpx.ReadTimeout):  # no worker is there: the request is in Kafka
            await http.post(f"https://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=1.0)
        with pytest.raises(httpx.HTTPError):
            await http.get(f"http://127.0.0.1:{port}/v1/models")
    url = f"wss://127.0.0.1:{port}/v1/stream"
    protocol = f"headrace.key.{_base64(KEY)}"
    async with connect(url, ssl=trusting, subprotocols=["headrace.v1", protocol]) as socket:  # type: ignore[list-item]
        await socket.send('{"type":"ping"}')
        assert await socket.recv() == '{"type":"pong"}'
    async with connect(f"{url}?api_key={KEY}", ssl=trusting) as socket:
        await socket.send(f'{{"type":"generate","prompt":"{PROMPT}"}}')
        assert '"accepted"' in str(await socket.recv())
    trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    async with grpc.aio.secure_channel(f"127.0.0.1:{grpc_port}", trusted) as channel:
        health: Any = HealthStub(channel)
        found = await health.Check(HealthCheckRequest(), timeout=10)
    assert found.status == HealthCheckResponse.SERVING
