"""Two tenants with the same names, where a real worker decides: conversations, ids, cancels, KV."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from headrace.consumers.gateway import build_app
from headrace.consumers.grpc_server import GrpcServer
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.proto.headrace.v1.generation_pb2_grpc import GenerationStub
from tests.faults import settings_of
from tests.pipeline import WorkerProcess
from tests.unit.consumers.doubles import TOPIC_PARTITIONS
from tests.unit.consumers.running import running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

TENANTS = ("acme", "other")
LONG_TEXT = "a word and another one, " * 20
"""Several blocks of KV state."""


@dataclass
class Tenants:
    """A client of each tenant, and where they call."""

    acme: httpx.AsyncClient
    other: httpx.AsyncClient
    address: str
    grpc_address: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenants(
    kafka_bootstrap: str,
    redis_url: str,
    slow_model_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Tenants]:
    """NOTE: without the reader of `Pipeline`, for which a request id is one request."""
    folder = tmp_path_factory.mktemp("tenants")
    path = folder / "keys.json"
    path.write_text(json.dumps({f"key-{name}": name for name in TENANTS}))
    plain = settings_of(kafka_bootstrap, redis_url, slow_model_dir, prefix=f"t{uuid4().hex}")
    settings = plain.model_copy(update={"api_keys_file": path})
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    log, requests = ResponseLog(settings), RequestProducer(settings)
    worker = WorkerProcess(settings, folder)
    try:
        await worker.ready()
        await requests.start()
        await log.start()
        app = build_app(settings, log, requests)
        server = GrpcServer(app.state.gateway)
        async with running(app, settings) as address:
            port = await server.start("127.0.0.1", 0)
            acme, other = (_client(address, name) for name in TENANTS)
            try:
                async with acme, other:
                    yield Tenants(acme, other, address, f"127.0.0.1:{port}")
            finally:
                await server.stop()
    finally:
        await log.stop()
        await requests.stop()
        worker.kill()


def _client(address: str, tenant: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer key-{tenant}"}
    return httpx.AsyncClient(base_url=f"http://{address}/v1", headers=headers, timeout=60)


async def ask(http: httpx.AsyncClient, text: str, **fields: Any) -> dict[str, Any]:
    """The answer, or the error, to one message."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
    }
    answered = await http.post("/chat/completions", json=body | fields)
    found: dict[str, Any] = answered.json()
    return found


async def test_a_session_of_another_tenant_is_another_conversation(tenants: Tenants) -> None:
    """Neither goes on with what the other said, nor forgets it by a delete."""
    first = await ask(tenants.acme, "one", session_id="s1", context="append")
    theirs = await ask(tenants.other, "one", session_id="s1", context="append", turn=0)
    assert theirs["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    lost = await ask(tenants.other, "two", session_id="s1", context="append", turn=2)
    assert lost["error"]["code"] == "session_out_of_sync"
    assert (await tenants.other.delete("/sessions/s1")).status_code == 202
    fresh = await ask(tenants.other, "two", session_id="s1", context="append", turn=0)
    second = await ask(tenants.acme, "two", session_id="s1", context="append", turn=1)
    assert second["usage"]["prompt_tokens"] > fresh["usage"]["prompt_tokens"]


async def test_a_request_id_and_its_cancel_are_their_tenants_own(tenants: Tenants) -> None:
    """A cancel that came before its request is kept for its own tenant's request of that id."""
    names = {"request_id": "r1", "session_id": "s2"}
    answered = await tenants.other.post("/requests/r1/cancel", json={"session_id": "s2"})
    assert answered.status_code == 202
    mine = await ask(tenants.acme, "mine", **names)
    theirs = await ask(tenants.other, "a longer text of theirs", **names)
    assert mine["choices"][0]["finish_reason"] == "length"
    assert theirs["choices"][0]["finish_reason"] == "cancelled"
    again = await ask(tenants.acme, "other words", **names)
    assert again["choices"] == mine["choices"]


async def test_no_kv_state_of_another_tenant_is_used(tenants: Tenants) -> None:
    """A long prompt that is in the cache for one is computed for the other: its time tells
    nothing of what others asked.
    """
    cached = []
    for http in (tenants.acme, tenants.acme, tenants.other):
        found = await ask(http, LONG_TEXT)
        cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] > 0
    assert cached[2] == 0


@dataclass
class Running:
    """A long answer under way, and a task that reads it as it comes."""

    finish_reasons: list[str | None] = field(default_factory=list)

    async def read(self, http: httpx.AsyncClient, names: dict[str, str]) -> str | None:
        """Read to the end; returns how it ended."""
        body = names | {"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 3500}
        options = {"stream": True, "ignore_eos": True}
        async with http.stream("POST", "/chat/completions", json=body | options) as answered:
            async for line in answered.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    self.finish_reasons += [one["finish_reason"] for one in choices]
        return self.finish_reasons[-1]

    async def goes_on(self) -> None:
        """Wait for more of it."""
        num_before = len(self.finish_reasons)
        async with asyncio.timeout(30):
            while len(self.finish_reasons) < num_before + 5:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        assert set(self.finish_reasons) == {None}


async def cancel_by_http(tenants: Tenants, tenant: str, names: dict[str, str]) -> None:
    http = getattr(tenants, tenant)
    path, body = f"/requests/{names['request_id']}/cancel", {"session_id": names["session_id"]}
    assert (await http.post(path, json=body)).status_code == 202


async def cancel_by_socket(tenants: Tenants, tenant: str, names: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer key-{tenant}"}
    url = f"ws://{tenants.address}/v1/stream"
    async with connect(url, additional_headers=headers) as socket, asyncio.timeout(10):
        await socket.send(json.dumps({"type": "cancel"} | names))
        await socket.send('{"type":"ping"}')
        assert json.loads(await socket.recv())["type"] == "pong"


async def cancel_by_grpc(tenants: Tenants, tenant: str, names: dict[str, str]) -> None:
    async with grpc.aio.insecure_channel(tenants.grpc_address) as channel:
        key = (("authorization", f"Bearer key-{tenant}"),)
        await GenerationStub(channel).Cancel(pb.CancelRequest(**names), metadata=key, timeout=10)


@pytest.mark.parametrize("cancel", [cancel_by_http, cancel_by_socket, cancel_by_grpc])
async def test_nobody_cancels_what_another_tenant_has_running(
    tenants: Tenants, cancel: Callable[[Tenants, str, dict[str, str]], Awaitable[None]]
) -> None:
    """Of two running answers with the same names, a cancel ends its own tenant's only."""
    names = {"request_id": f"r-{uuid4().hex}", "session_id": f"s-{uuid4().hex}"}
    mine, theirs = Running(), Running()
    async with asyncio.TaskGroup() as tasks:
        reading_mine = tasks.create_task(mine.read(tenants.acme, names))
        reading_theirs = tasks.create_task(theirs.read(tenants.other, names))
        await mine.goes_on()
        await theirs.goes_on()
        await cancel(tenants, "other", names)
        assert await reading_theirs == "cancelled"
        await mine.goes_on()
        await cancel(tenants, "acme", names)
        assert await reading_mine == "cancelled"
