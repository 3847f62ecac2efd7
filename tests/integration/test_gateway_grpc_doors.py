"""No stranger and no tenant can shut gRPC for others: every kind of call has places of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.consumers import grpc_doors
from headrace.consumers.grpc_doors import Doors, tenant_in
from headrace.consumers.grpc_server import GrpcServer
from headrace.schemas.errors import RequestError
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.proto.headrace.v1.generation_pb2_grpc import GenerationStub
from headrace.schemas.settings import Settings
from tests.gateway import scripted_gateway
from tests.unit.consumers.doubles import answer

pytestmark = [pytest.mark.integration]

STREAM = "/headrace.v1.Generation/Stream"
ENDLESS = "never-finished"
CHECK = health_pb2.HealthCheckRequest()


@dataclass
class Served:
    """A gateway's gRPC address, with the keys of two tenants."""

    address: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own."""
        async with grpc.aio.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield channel


@pytest.fixture
async def served(
    kafka_bootstrap: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    """With few places, and little patience."""
    for name, limit in (("CALLS", 4), ("CHECKS", 2), ("WATCHES", 3), ("REFLECTIONS", 1)):
        monkeypatch.setattr(grpc_doors, f"MAX_{name}", limit)
    for name in ("KEYED_MESSAGE_S", "MESSAGE_S", "REFLECTION_S"):
        monkeypatch.setattr(grpc_doors, name, 0.3)
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"key-a": "a", "key-b": "b"}))
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix, api_keys_file=keys)
    async with scripted_gateway(settings) as gateway:
        for tenant in "ab":
            first, *_ = answer(ENDLESS, "s1", ["a", "b"])
            await gateway.events.write(first, session_id="s1", tenant=tenant)
        server = GrpcServer(gateway.app.state.gateway)
        port = await server.start("127.0.0.1", 0)
        try:
            yield Served(f"127.0.0.1:{port}")
        finally:
            await server.stop()


def key(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {name}"),)


def follow(channel: grpc.aio.Channel, name: str) -> Any:
    """A call that stays open: its request has no last event."""
    where = pb.ResumeRequest(request_id=ENDLESS, session_id="s1")
    return GenerationStub(channel).Stream(pb.StreamRequest(resume=where), metadata=key(name))


def without_message(channel: grpc.aio.Channel, method: str, name: str) -> Any:
    """A call of `method` that is opened; nothing is sent."""
    return channel.stream_stream(method)(metadata=key(name))


async def code_of(call: Any) -> grpc.StatusCode:
    """How it ends."""
    async with asyncio.timeout(10):
        return grpc.StatusCode(await call.code())


async def test_strangers_who_watch_shut_nobody_out(served: Served) -> None:
    """Their own places are taken, and given back when they leave."""
    async with served.client() as ours, served.client() as theirs:
        watching: Any = health_pb2_grpc.HealthStub(theirs)
        asking: Any = health_pb2_grpc.HealthStub(ours)
        watches = [watching.Watch(CHECK) for _ in range(3)]
        for watch in watches:
            assert await watch.read()
        assert await code_of(watching.Watch(CHECK)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await asking.Check(CHECK)).status == health_pb2.HealthCheckResponse.SERVING
        reading = follow(ours, "key-a")
        assert (await reading.read()).request_id == ENDLESS
        for watch in watches:
            watch.cancel()
        async with asyncio.timeout(10):
            while await (again := watching.Watch(CHECK)).read() is grpc.aio.EOF:
                pass
        again.cancel()


async def test_a_tenant_shuts_no_other_out(served: Served) -> None:
    """It has half of the places, for what it generates and for what it reads."""
    async with served.client() as channel:
        calls = [follow(channel, "key-a") for _ in range(2)]
        for call in calls:
            await call.read()
        refused = follow(channel, "key-a")
        assert await code_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "retry-after" in dict(await refused.trailing_metadata())
        assert "2 gRPC calls of this tenant" in await refused.details()
        other = follow(channel, "key-b")
        assert (await other.read()).request_id == ENDLESS
        calls[0].cancel()
        async with asyncio.timeout(10):
            while await follow(channel, "key-a").read() is grpc.aio.EOF:
                pass


async def test_a_call_that_says_nothing_is_ended(served: Served) -> None:
    """Else it held its place for ever; a wrong key is refused before anything is said."""
    async with served.client() as channel:
        silent = [without_message(channel, STREAM, "key-a") for _ in range(2)]
        silent.append(without_message(channel, "/grpc.health.v1.Health/Check", "none"))
        stranger = without_message(channel, STREAM, "none")
        assert await code_of(stranger) is grpc.StatusCode.UNAUTHENTICATED
        for call in silent:
            assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await follow(channel, "key-a").read()).request_id == ENDLESS


async def test_a_call_without_its_message_is_refused(served: Served) -> None:
    """Ended before it came; or bytes that are no message."""
    async with served.client() as channel:
        call = without_message(channel, STREAM, "key-a")
        await call.done_writing()
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        call = without_message(channel, STREAM, "key-a")
        await call.write(b"\xff\xff\xff")
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        missing = without_message(channel, "/headrace.v1.Generation/Nothing", "key-a")
        assert await code_of(missing) is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_is_bounded_in_number_and_time(served: Served) -> None:
    """A stranger may keep asking."""
    question: Any = reflection_pb2.ServerReflectionRequest

    async def ask_for_ever() -> AsyncIterator[Any]:
        yield question(list_services="")
        await asyncio.Event().wait()

    async with served.client() as channel, AsyncExitStack() as stack:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        first = stub.ServerReflectionInfo(ask_for_ever())
        stack.callback(first.cancel)
        assert (await first.read()).list_services_response.service
        second = stub.ServerReflectionInfo(iter([question(list_services="")]))
        assert await code_of(second) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await code_of(first) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_burst_is_served_or_told_why(served: Served) -> None:
    """Thousands at once: RESOURCE_EXHAUSTED with a reason, never grpc's own CANCELLED."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(served.client()) for _ in range(4)]
        cancel = pb.CancelRequest(request_id="nobody")
        calls = [
            GenerationStub(channels[number % 4]).Cancel(cancel, metadata=key("key-a"))
            for number in range(3_000)
        ]
        codes = {await code_of(call) for call in calls}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_a_client_that_left_is_no_crash(served: Served) -> None:
    """What cannot be sent to it is how grpc tells of it; its place is given back."""

    async def gone(_request: Any, _context: Any) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")

    async def one_message() -> AsyncIterator[bytes]:
        yield b"x"

    class Keys:
        keyless = True

        def tenant_of(self, _key: str | None) -> str:
            return "t"

    class Details:
        method, invocation_metadata = STREAM, ()

    async def find(_details: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(gone)

    doors: Any = Doors(Keys())  # type: ignore[arg-type]
    for _ in range(10):
        admitted = await doors.intercept_service(find, Details())
        with pytest.raises(asyncio.CancelledError):
            await admitted.stream_stream(one_message(), None)


def test_a_key_may_be_text_or_bytes() -> None:
    """Metadata has both; a wrong one is told as over HTTP."""

    class Keys:
        def tenant_of(self, found: str | None) -> str:
            if found != "k":
                raise RequestError("unauthorized", "no", None)  # type: ignore[arg-type]
            return "t"

    keys: Any = Keys()
    for value in ("Bearer k", b"Bearer k"):
        assert tenant_in([("authorization", value)], keys) == "t"
    for metadata in (None, [("authorization", b"Basic k")]):
        with pytest.raises(RequestError):
            tenant_in(metadata, keys)
