"""Two tenants with the same names at one gateway: none reads, ends or changes what the other has.

Over HTTP, WebSocket and gRPC, with a scripted worker; keys that go and limits that are reached.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import httpx
import openai
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headrace.consumers.context import Bounds
from headrace.consumers.gateway import build_app
from headrace.consumers.grpc_server import GrpcServer
from headrace.consumers.keys_watch import KeysWatch
from headrace.consumers.response_log import ResponseLog
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.proto.headrace.v1.generation_pb2_grpc import GenerationStub
from headrace.schemas.settings import Settings
from tests.gateway import ScriptedGateway, scripted_gateway
from tests.unit.consumers.doubles import answer
from tests.unit.consumers.running import running

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ACME, OTHER, LIMITED, COSTLY = "key-acme", "key-other", "key-limited", "key-costly"
KEYS: dict[str, Any] = {
    ACME: "a/b",
    OTHER: "a",
    LIMITED: {"tenant": "limited", "requests_per_minute": 1},
    COSTLY: {"tenant": "costly", "tokens_per_minute": 10},
}
SESSIONS = {ACME: "c", OTHER: "b/c"}
"""Joined by a slash, tenant and session of both are the same."""

HI = [{"role": "user", "content": "hi"}]


@dataclass
class Served:
    """A gateway with keys, and the file that they stand in."""

    gateway: ScriptedGateway
    path: Path

    def http(self, key: str, **headers: str) -> httpx.AsyncClient:
        sent = {"Authorization": f"Bearer {key}"} | headers
        return httpx.AsyncClient(base_url=self.gateway.url, headers=sent, timeout=10)

    def socket(self, key: str) -> Any:
        url = f"ws://{self.gateway.address}/v1/stream"
        return connect(url, additional_headers={"Authorization": f"Bearer {key}"})

    @property
    def core(self) -> Any:
        return self.gateway.app.state.gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps(KEYS))
    settings = Settings(
        kafka=kafka_bootstrap, topic_prefix=f"t{uuid4().hex[:12]}", api_keys_file=path
    )
    async with scripted_gateway(settings, bounds=Bounds(heartbeat_s=0.2)) as gateway:
        yield Served(gateway, path)


@pytest_asyncio.fixture(loop_scope="module")
async def served(shared: Served) -> Served:
    """The module's gateway, with its worker as it was at first."""
    sink = shared.gateway.sink
    sink.pause_s, sink.silent = 0.0, False
    for kept in (sink.submitted, sink.cancelled, sink.tenants, sink.traces, sink.deleted):
        kept.clear()
    return shared


def fresh() -> str:
    """An id that no other test uses."""
    return f"r-{uuid4().hex}"


async def exchange(socket: ClientConnection, **frame: Any) -> list[dict[str, Any]]:
    """What comes back for `frame`, up to the answer to a ping behind it."""
    await socket.send(json.dumps(frame))
    await socket.send('{"type":"ping"}')
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        while True:
            found.append(json.loads(await socket.recv()))
            if found[-1]["type"] == "pong":
                return found[:-1]


async def text_of(socket: ClientConnection) -> str:
    """The text of the events that come, up to a last one."""
    text = ""
    async with asyncio.timeout(10):
        while True:
            frame = json.loads(await socket.recv())
            if frame["type"] != "event":
                continue
            choice = frame["event"]["choices"][0]
            text += str(choice["delta"].get("content", ""))
            if choice["finish_reason"] is not None:
                return text


async def write(served: Served, request_id: str) -> None:
    """The same request id answered for both tenants, each in its own session and words."""
    for key, session_id in SESSIONS.items():
        for value in answer(request_id, session_id, [f"{key} ", "."]):
            await served.gateway.events.write(value, session_id=session_id, tenant=KEYS[key])


async def test_http_reads_its_own_events_only(served: Served) -> None:
    """By request id, with the other's session, from the other's cursor."""
    request_id, key, other = fresh(), OTHER, ACME
    await write(served, request_id)
    async with served.http(key) as http, served.http(other) as stranger:
        url = f"/requests/{request_id}/events"
        own = await http.get(url)
        assert (key in own.text, other in own.text) == (True, False)
        foreign = await http.get(url, params={"session_id": SESSIONS[other]})
        assert other not in foreign.text
        assert foreign.status_code == 404
        theirs = await stranger.get(url)
        cursor = theirs.text.splitlines()[0].removeprefix("id: ")
        assert cursor.startswith("c")
        for params in ({"cursor": cursor}, {"cursor": cursor, "session_id": SESSIONS[other]}):
            assert (await http.get(url, params=params)).status_code == 410


@pytest.mark.parametrize("key", [ACME, OTHER])
async def test_a_socket_reads_its_own_events_only(served: Served, key: str) -> None:
    """Sessions, requests, numbers and cursors of the other give nothing or `resume_gap`."""
    request_id = fresh()
    await write(served, request_id)
    other = OTHER if key == ACME else ACME
    async with served.http(other) as stranger:
        theirs = await stranger.get(f"/requests/{request_id}/events")
    cursor = theirs.text.splitlines()[0].removeprefix("id: ")
    async with served.socket(key) as socket:
        for session in ({"request_id": request_id}, {"session_id": SESSIONS[other]}):
            (error,) = await exchange(socket, type="subscribe", cursor=cursor, **session)
            assert error["error"]["code"] == "resume_gap"
        await socket.send(json.dumps({"type": "subscribe", "request_id": request_id}))
        assert await text_of(socket) == f"{key} ."
        await exchange(socket, type="subscribe", session_id=SESSIONS[other])
        new = fresh()
        for value in answer(new, SESSIONS[other], ["live"]):
            await served.gateway.events.write(value, session_id=SESSIONS[other], tenant=KEYS[other])
        await exchange(socket, type="subscribe", session_id=SESSIONS[key])
        for value in answer(new, SESSIONS[key], ["mine"]):
            await served.gateway.events.write(value, session_id=SESSIONS[key], tenant=KEYS[key])
        assert await text_of(socket) == "mine"


async def test_grpc_reads_its_own_events_only(served: Served) -> None:
    """By id and by cursor; without a key nothing."""
    request_id = fresh()
    await write(served, request_id)
    server = GrpcServer(served.core)
    port = await server.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = GenerationStub(channel)

            async def read(key: str, **place: Any) -> list[pb.StreamResponse]:
                call = stub.Stream(
                    pb.StreamRequest(resume=pb.ResumeRequest(request_id=request_id, **place)),
                    metadata=(("authorization", f"Bearer {key}"), ("headrace-tenant", "a/b")),
                    timeout=10,
                )
                return [message async for message in call]

            theirs = await read(ACME)
            mine = await read(OTHER)
            assert [one.chunk.content for one in (theirs[0], mine[0])] == [
                "key-acme ",
                "key-other ",
            ]
            for key, code in ((OTHER, "OUT_OF_RANGE"), ("none", "UNAUTHENTICATED")):
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await read(key, cursor=theirs[0].cursor)
                assert ended.value.code().name == code
    finally:
        await server.stop()


@pytest.mark.parametrize("way", ["http", "socket"])
async def test_who_writes_is_told_by_the_key_alone(served: Served, way: str) -> None:
    """No body, frame, header or encoded path names another tenant; ids are names, never paths."""
    request_id = f"../{fresh()}/é/e\u0301"
    body = {"request_id": request_id, "messages": HI, "tenant": "a/b", "session_id": "../c"}
    sink = served.gateway.sink
    if way == "http":
        async with served.http(OTHER, **{"headrace-tenant": "a/b", "tenant": "a/b"}) as http:
            assert (await http.post("/chat/completions", json=body)).status_code == 200
            for name in ("%2e%2e", "..%2Fa%2Fb", "e%CC%81"):
                assert (await http.post(f"/requests/{name}/cancel")).status_code == 202
            assert (await http.delete("/sessions/..%2Fc")).status_code == 202
        assert sink.cancelled == ["..", "../a/b", "e\u0301"]
        assert sink.deleted == [("a", "../c")]
    else:
        async with served.socket(OTHER) as socket:
            await exchange(socket, type="generate", **body)
    assert sink.tenants == ["a"]
    assert [sent["tenant"] for sent in sink.submitted] == ["a"]
    assert all(name != "headrace-tenant" for name, _ in sink.traces[0])


async def test_an_id_is_its_tenants_own(served: Served) -> None:
    """Both have a request of one id: both are produced and answered, and are charged as two."""
    request_id = fresh()
    call = {"messages": HI, "request_id": request_id, "session_id": "s"}
    for key in (ACME, OTHER):
        async with served.http(key) as http:
            assert (await http.post("/chat/completions", json=call)).status_code == 200
    assert served.gateway.sink.tenants == ["a/b", "a"]


async def test_a_key_that_goes_ends_its_sockets_and_calls(served: Served) -> None:
    """1008 for the sockets of that key, 401 for the next call; others stay as they are."""
    path, core = served.path, served.core
    watch = KeysWatch(path, core.keys, core.metrics, interval_s=0.01)
    path.write_text(json.dumps(KEYS | {"key-gone": "a"}))
    await watch.start()
    try:
        async with asyncio.timeout(10), served.http("key-gone") as http:
            while (await http.get("/models")).status_code == 401:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with served.socket("key-gone") as gone, served.socket(OTHER) as stays:
                assert await exchange(gone, type="subscribe", session_id="s") == []
                path.write_text(json.dumps(KEYS))
                with pytest.raises(ConnectionClosed) as closed:
                    await gone.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
                assert await exchange(stays, type="subscribe", session_id="s") == []
            assert (await http.get("/models")).status_code == 401
            with pytest.raises(InvalidStatus):
                await served.socket("key-gone").__aenter__()
    finally:
        await watch.stop()


async def test_a_tenants_requests_are_limited(served: Served) -> None:
    """429 with Retry-After and OpenAI's headers; in a frame too; a repeat of an id is free."""
    call = {"messages": HI, "request_id": fresh()}
    async with served.http(LIMITED) as http, served.socket(LIMITED) as socket:
        for _ in range(2):
            passed = await http.post("/chat/completions", json=call)
            assert passed.status_code == 200
            assert passed.headers["x-ratelimit-limit-requests"] == "1"
            assert passed.headers["x-ratelimit-remaining-requests"] == "0"
            assert float(passed.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        refused = await http.post("/chat/completions", json=call | {"request_id": fresh()})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limited"
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        (error,) = await exchange(socket, type="generate", messages=HI)
        assert 0 < error["error"]["retry_after_s"] <= 60
        assert len(served.gateway.sink.submitted) == 2
    client = served.gateway.client(api_key=LIMITED)
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model="m", messages=HI)  # type: ignore[arg-type]
    await client.close()
    metrics = served.core.metrics.registry.get_sample_value
    assert metrics("headrace_gateway_rate_limited_total", {"limit": "requests"}) == 3


async def test_what_is_used_elsewhere_counts_here(served: Served) -> None:
    """A second gateway on the same log knows what a tenant has used at the first: reserved by
    `max_tokens`, settled by the usage of the last event. What never fits is no matter of waiting.
    """
    log = ResponseLog(served.gateway.settings)
    await log.start()
    try:
        app = build_app(served.gateway.settings, log, served.gateway.sink)
        async with (
            running(app, served.gateway.settings) as address,
            served.http(COSTLY) as here,
            httpx.AsyncClient(base_url=f"http://{address}/v1", headers=here.headers) as there,
        ):
            call = {"messages": HI, "max_tokens": 9}  # and 1 for the prompt
            assert (await here.post("/chat/completions", json=call)).status_code == 200
            async with asyncio.timeout(5):
                while remaining(app.state.gateway) == 10:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
            for http in (here, there):
                refused = await http.post("/chat/completions", json=call)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) <= 48  # 8 tokens were used, not 10
            never = await there.post("/chat/completions", json=call | {"max_tokens": 10})
            assert (never.status_code, never.json()["error"]["param"]) == (400, "max_tokens")
    finally:
        await log.stop()


def remaining(gateway: Any) -> int:
    """Tokens that the costly tenant has left."""
    return int(gateway.admission.headers("costly")["x-ratelimit-remaining-tokens"])
