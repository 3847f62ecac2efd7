"""`headrace gateway` as a process: start, signals, exit codes."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from headrace.deploy.processes import free_port
from headrace.deploy.supervisor import answers
from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings, child_environment, load_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics and a port of this test's own."""
    return load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, http_port=free_port())


async def gateway(settings: Settings, *flags: str) -> Process:
    """Start it as `up` would."""
    port = str(settings.http_port)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "gateway", "--http-port", port, *flags),
        env=child_environment(kafka=settings.kafka, topic_prefix=settings.topic_prefix),
        stderr=PIPE,
    )


async def until_ready(settings: Settings) -> None:
    """Wait for `/readyz`."""
    async with asyncio.timeout(30):
        while True:
            if await asyncio.to_thread(answers, "127.0.0.1", settings.http_port, "/readyz"):
                return
            await asyncio.sleep(0.1)


async def test_grpc_is_served_beside_http_where_it_is_asked_for(settings: Settings) -> None:
    """On a free port that the log tells; SIGTERM stops both."""
    await ensure_topics(settings, partitions=3)
    process = await gateway(settings, "--grpc-port", "0")
    assert process.stderr is not None
    async with asyncio.timeout(30):
        line = b""
        while b"gateway.grpc_listening" not in line:
            line = await process.stderr.readline()
    address = f"127.0.0.1:{line.rpartition(b'port=')[2].decode().split()[0]}"
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = HealthStub(channel)
        found = await stub.Check(HealthCheckRequest())
    assert found.status == HealthCheckResponse.SERVING
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert (process.returncode, b"gateway.stopped" in err) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_with_exit_code_0(
    settings: Settings, number: signal.Signals
) -> None:
    """Also with a connection that is open and says nothing."""
    await ensure_topics(settings, partitions=3)
    process = await gateway(settings)
    await until_ready(settings)
    idle = socket.create_connection(("127.0.0.1", settings.http_port))
    process.send_signal(number)
    _, err = await process.communicate()
    idle.close()
    assert process.returncode == 0
    assert b"Traceback" not in err
    assert b"gateway.stopped" in err


async def test_a_signal_while_it_waits_for_kafka_stops_it() -> None:
    """Nobody has to wait for the connect timeout; meanwhile it says that it is not ready."""
    settings = load_settings(kafka="127.0.0.1:1", http_port=free_port())
    process = await gateway(settings)
    assert process.stderr is not None
    assert b"Unable connect" in await process.stderr.readline()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{settings.http_port}") as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        await process.communicate()
    assert process.returncode == 0


async def test_without_topics_it_fails_with_a_clear_line(settings: Settings) -> None:
    """The last line says what to do; exit code 1."""
    process = await gateway(settings)
    _, err = await process.communicate()
    assert process.returncode == 1
    assert b"headrace topics create" in err.splitlines()[-1]
    assert b"Traceback" not in err


async def test_a_port_that_is_taken_is_one_clear_line(settings: Settings) -> None:
    """Before anything is connected."""
    with socket.create_server(("127.0.0.1", settings.http_port)):
        process = await gateway(settings)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode() == (
        f"headrace: cannot listen on 127.0.0.1:{settings.http_port}: Address already in use\n"
    )
