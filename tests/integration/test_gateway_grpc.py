"""The gateway's gRPC side over a real Kafka: streams, errors, ways to leave, stop and resume."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.consumers.context import Bounds
from headrace.consumers.gateway import build_app
from headrace.consumers.grpc_server import SERVICE, GrpcServer
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.proto.headrace.v1.generation_pb2_grpc import GenerationStub
from headrace.schemas.settings import Settings
from tests.chaos.proxy import RedisProxy
from tests.documented import documented
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, ScriptedSink, answer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

WORDS = [f"w{number} " for number in range(20)]
HI = [pb.Message(role=pb.ROLE_USER, content="hi")]
Call = grpc.aio.UnaryStreamCall[pb.StreamRequest, pb.StreamResponse]


@dataclass
class Stack:
    """A gateway with gRPC, its scripted worker, and a client."""

    settings: Settings
    log: ResponseLog
    events: ResponseWriter
    sink: ScriptedSink
    gateway: Any
    server: GrpcServer
    address: str
    stub: GenerationStub


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(kafka_bootstrap: str) -> AsyncIterator[Stack]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=f"t{uuid4().hex[:12]}")
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    async with (
        ResponseWriter(settings) as events,
        ScriptedSink(events, WORDS) as sink,
        serving(settings, events, sink) as stack,
    ):
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def stack(shared: Stack) -> Stack:
    """The module's stack, as it was at first."""
    sink = shared.sink
    sink.words, sink.pause_s, sink.error, sink.silent = list(WORDS), 0.0, None, False
    for kept in (sink.submitted, sink.cancelled, sink.tenants, sink.traces):
        kept.clear()
    return shared


@asynccontextmanager
async def serving(
    settings: Settings, events: ResponseWriter, sink: ScriptedSink, no_progress_s: float = 120.0
) -> AsyncIterator[Stack]:
    """A gateway with a log of its own, as another process would be."""
    log = ResponseLog(settings)
    await log.start()
    try:
        bounds = Bounds(heartbeat_s=0.2, send_s=0.5, no_progress_s=no_progress_s)
        gateway = build_app(settings, log, sink, bounds=bounds).state.gateway
        server = GrpcServer(gateway)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        async with grpc.aio.insecure_channel(address) as channel:
            stub = GenerationStub(channel)
            yield Stack(settings, log, events, sink, gateway, server, address, stub)
            await server.stop()
    finally:
        await log.stop()


def ask(**fields: Any) -> pb.StreamRequest:
    """A request to generate."""
    return pb.StreamRequest(generate=pb.GenerateRequest(**({"messages": HI} | fields)))


def resume(request_id: str, **fields: Any) -> pb.StreamRequest:
    """A request to go on reading."""
    return pb.StreamRequest(resume=pb.ResumeRequest(request_id=request_id, **fields))


def fresh() -> str:
    """An id that no other test uses."""
    return f"r-{uuid4().hex}"


async def read(call: Call, count: int) -> list[pb.StreamResponse]:
    """The next `count` messages."""
    async with asyncio.timeout(10):
        return [await anext(call.__aiter__()) for _ in range(count)]


async def read_all(call: Call) -> list[pb.StreamResponse]:
    """Every message. Raises: grpc.aio.AioRpcError."""
    async with asyncio.timeout(10):
        return [message async for message in call]


async def read_into(call: Call, found: list[pb.StreamResponse]) -> None:
    """Every message, also those before an error. Raises: grpc.aio.AioRpcError."""
    async for message in call:
        found.append(message)  # noqa: PERF401 - what came before an error is kept


async def status_of(call: Call) -> tuple[grpc.StatusCode, dict[str, str]]:
    """How a call ended."""
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read_all(call)
    trailing = {key: str(value) for key, value in ended.value.trailing_metadata()}
    return ended.value.code(), trailing


async def settled(check: Callable[[], Any]) -> None:
    """Wait until `check()` holds."""
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


def numbers(messages: list[pb.StreamResponse]) -> list[int]:
    return [message.sequence_number for message in messages]


def text(messages: list[pb.StreamResponse]) -> str:
    return "".join(message.chunk.content + message.completed.content for message in messages)


async def test_a_generation_is_accepted_and_streamed(stack: Stack) -> None:
    """Names first, then every event with its place; the last one says how it went."""
    stack.sink.worker = "worker-a"
    found = await read_all(stack.stub.Stream(ask(session_id="s1", temperature=0.5)))
    accepted, *events = found
    assert accepted.WhichOneof("event") == "accepted"
    assert accepted.session_id == "s1"
    assert {message.request_id for message in events} == {accepted.request_id}
    assert numbers(events) == list(range(len(WORDS)))
    assert [it.WhichOneof("event") for it in events] == ["chunk"] * 19 + ["completed"]
    assert (events[0].chunk.role, events[0].attempt, events[0].worker) == (
        pb.ROLE_ASSISTANT,
        1,
        "worker-a",
    )
    assert text(events) == "".join(WORDS)
    last = events[-1].completed
    assert last.finish_reason == pb.FINISH_REASON_STOP
    assert (last.usage.total_tokens, last.timings.ttft_ms, last.seed) == (8, 12.0, 7)
    (sent,) = stack.sink.submitted
    assert (sent["temperature"], sent["messages"]) == (0.5, [{"role": "user", "content": "hi"}])
    assert (stack.sink.cancelled, stack.sink.tenants) == ([], ["default"])


async def test_a_whole_answer_is_one_message(stack: Stack) -> None:
    """`stream` = false, as over HTTP."""
    _, last = await read_all(stack.stub.Stream(ask(stream=False)))
    assert last.completed.content == "".join(WORDS)


async def test_a_failed_answer_is_a_message_not_a_status(stack: Stack) -> None:
    """The call did what it was asked for; the same message comes to whoever resumes."""
    stack.sink.error = RequestError(ErrorCode.EXPIRED, "late", "ttl_ms")
    _, last = await read_all(stack.stub.Stream(ask(ttl_ms=5)))
    error = last.failed.error
    assert (error.code, error.message, error.param) == ("expired", "late", "ttl_ms")
    (again,) = await read_all(stack.stub.Stream(resume(last.request_id)))
    assert again == last


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (pb.StreamRequest(), "invalid_value", "call"),
        (ask(temperature=9), "invalid_value", "temperature"),
        (ask(temperature=float("nan")), "invalid_value", "temperature"),
        (ask(messages=[]), "invalid_value", "messages"),
        (ask(context=99), "invalid_value", "context"),
        (ask(messages=[pb.Message(content="x")]), "invalid_value", "messages.0.role"),
        (ask(metadata={"é" * 65: "x"}), "invalid_value", "metadata." + "%C3%A9" * 65),
        (resume(""), "invalid_value", "request_id"),
        (resume("r", starting_after=-2), "invalid_value", "starting_after"),
        (resume("r", cursor="?"), "invalid_value", "cursor"),
    ],
)
async def test_a_bad_call_is_refused_before_it_is_produced(
    stack: Stack, request_: pb.StreamRequest, code: str, param: str
) -> None:
    """INVALID_ARGUMENT with the contract's code and the field."""
    status, trailing = await status_of(stack.stub.Stream(request_))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert (trailing["headrace-code"], trailing["headrace-param"]) == (code, param)
    assert stack.sink.submitted == []


async def test_other_refusals_have_codes_of_their_own(stack: Stack) -> None:
    """A cursor that is gone, an id that nobody sent, a message over the limit."""
    gone = await status_of(stack.stub.Stream(resume("r", cursor="c1.0.999999")))
    assert (gone[0], gone[1]["headrace-code"]) == (grpc.StatusCode.OUT_OF_RANGE, "resume_gap")
    unknown = await status_of(stack.stub.Stream(resume(fresh(), session_id="s1")))
    assert unknown[0] is grpc.StatusCode.NOT_FOUND
    large = await status_of(stack.stub.Stream(ask(prompt="x" * 1_100_000, messages=[])))
    assert large[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stack.sink.submitted == []


async def test_a_full_gateway_says_when_to_try_again(stack: Stack) -> None:
    """RESOURCE_EXHAUSTED with retry-after."""
    calls, max_open = stack.gateway.admission.calls, stack.gateway.bounds.max_open
    for _ in range(max_open):
        calls.take("other")
    status, trailing = await status_of(stack.stub.Stream(ask()))
    for _ in range(max_open):
        calls.give_back("other")
    assert (status, trailing["headrace-code"]) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "rate_limited",
    )
    assert float(trailing["retry-after"]) > 0


@pytest.mark.parametrize("way", ["cancel", "deadline", "channel", "reset", "unread"])
async def test_a_client_that_leaves_cancels_its_generation(stack: Stack, way: str) -> None:
    """However it leaves; the slot is free again."""
    stack.sink.pause_s = 0.05
    request_id = fresh()
    host, port = stack.address.split(":")
    async with RedisProxy(host, int(port)).listening() as proxy:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}")
        timeout_s = 0.4 if way == "deadline" else None
        call = GenerationStub(channel).Stream(ask(request_id=request_id), timeout=timeout_s)
        await read(call, 1 if way == "unread" else 3)
        if way in ("cancel", "unread"):
            call.cancel()
        elif way == "channel":
            await channel.close()
        elif way == "reset":
            proxy.refuse()
        await settled(lambda: stack.sink.cancelled == [request_id])
        await settled(lambda: stack.log.num_subscriptions == 0)
        await channel.close()
    assert stack.gateway.admission.calls.num_open == 0


async def test_a_background_generation_outlives_its_call(stack: Stack) -> None:
    """It is read to its end from where the client was."""
    stack.sink.pause_s = 0.02
    call = stack.stub.Stream(ask(request_id=fresh(), background=True, session_id="s2"))
    *_, last = await read(call, 6)
    call.cancel()
    await settled(lambda: stack.log.num_subscriptions == 0)
    rest = await read_all(stack.stub.Stream(resume(last.request_id, cursor=last.cursor)))
    assert numbers(rest) == list(range(5, 20))
    assert stack.sink.cancelled == []


@pytest.mark.parametrize("way", ["cursor", "number", "start"])
async def test_a_resumed_stream_goes_on_where_it_was(stack: Stack, way: str) -> None:
    """I8: by cursor, by sequence number, or from the start; a call that only reads cancels
    nothing.
    """
    request_id = fresh()
    _, *events = await read_all(stack.stub.Stream(ask(request_id=request_id, session_id="s3")))
    places: dict[str, dict[str, Any]] = {
        "cursor": {"cursor": events[9].cursor},
        "number": {"starting_after": 9},
        "start": {},
    }
    place = places[way]
    again = stack.stub.Stream(resume(request_id, session_id="s3", **place))
    await read(again, 1)
    again.cancel()
    rest = await read_all(stack.stub.Stream(resume(request_id, **place)))
    assert rest == (events if way == "start" else events[10:])
    assert stack.sink.cancelled == []


async def test_a_larger_attempt_is_passed_on(stack: Stack) -> None:
    """Contract §3: repeats and zombies are dropped, the new attempt comes from its start."""
    stack.sink.silent = True
    request_id = fresh()
    call = stack.stub.Stream(ask(request_id=request_id, session_id="s4"))
    await read(call, 1)
    old = answer(request_id, "s4", WORDS[:5])
    new = answer(request_id, "s4", WORDS[:3], attempt=2)
    for value in [*old[:3], old[1], *new[:2], old[3], new[1], new[2]]:
        await stack.events.write(value, session_id="s4", tenant="default")
    seen = [(it.attempt, it.sequence_number) for it in await read_all(call)]
    assert seen == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


async def test_cancel_ends_a_generation(stack: Stack) -> None:
    """The stream's last message says so; a bad id is refused."""
    stack.sink.pause_s = 0.03
    call = stack.stub.Stream(ask(request_id=fresh(), session_id="s5"))
    *_, seen = await read(call, 2)
    await stack.stub.Cancel(pb.CancelRequest(request_id=seen.request_id, session_id="s5"))
    assert (await read_all(call))[-1].completed.finish_reason == pb.FINISH_REASON_CANCELLED
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stack.stub.Cancel(pb.CancelRequest())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_slow_reader_is_let_go_and_can_resume(stack: Stack) -> None:
    """I1: bounded by flow control, then ABORTED with a cursor; the generation goes on."""
    stack.sink.words = ["x" * 100_000] * 60
    request_id = fresh()
    small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
    channel = grpc.aio.insecure_channel(stack.address, options=small)
    call = GenerationStub(channel).Stream(ask(request_id=request_id, session_id="s6"))
    await read(call, 2)
    slow = stack.gateway.metrics.slow_readers
    before = slow.collect()[0].samples[0].value
    await settled(lambda: slow.collect()[0].samples[0].value == before + 1)
    await settled(lambda: stack.log.num_subscriptions == 0)
    seen: list[pb.StreamResponse] = []
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read_into(call, seen)
    assert ended.value.code() is grpc.StatusCode.ABORTED
    trailing = dict(ended.value.trailing_metadata())
    assert trailing["headrace-cursor"] in {message.cursor for message in seen}
    rest = await read_all(stack.stub.Stream(resume(request_id, cursor=seen[-1].cursor)))
    assert numbers(rest) == list(range(seen[-1].sequence_number + 1, 60))
    assert stack.sink.cancelled == []
    await channel.close()


async def test_two_hundred_streams_at_once(stack: Stack) -> None:
    """Over one channel; each gets its own events, whole."""
    stack.sink.words = ["a ", "b ", "c "]
    async with asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(read_all(stack.stub.Stream(ask(session_id=f"m{number}"))))
            for number in range(200)
        ]
    answers = [call.result() for call in calls]
    assert {text(messages) for messages in answers} == {"a b c "}
    assert len({messages[0].request_id for messages in answers}) == 200
    await settled(lambda: stack.log.num_subscriptions == 0)


async def test_a_stopped_gateway_hands_its_streams_over(stack: Stack) -> None:
    """UNAVAILABLE with a cursor, with which another gateway goes on; nothing is cancelled."""
    stack.sink.pause_s = 0.02
    async with serving(stack.settings, stack.events, stack.sink) as other:
        call = other.stub.Stream(ask(request_id=fresh(), session_id="s7"))
        seen = await read(call, 6)
        idle = other.stub.Stream(resume(seen[0].request_id, starting_after=5))
        await read(idle, 1)
        await other.server.stop()
        status, trailing = await status_of(call)
        assert status is grpc.StatusCode.UNAVAILABLE
        assert (await status_of(idle))[0] is grpc.StatusCode.UNAVAILABLE
    place = {"cursor": trailing["headrace-cursor"]}
    rest = await read_all(stack.stub.Stream(resume(seen[0].request_id, **place)))
    assert numbers(rest) == list(range(rest[0].sequence_number, 20))
    whole = await read_all(stack.stub.Stream(resume(seen[0].request_id)))
    assert text(whole) == "".join(WORDS)
    assert stack.sink.cancelled == []


async def test_a_worker_that_says_nothing_is_not_waited_for_for_ever(stack: Stack) -> None:
    """UNAVAILABLE, and the request stays: its client may come back for the answer."""
    stack.sink.silent = True
    async with serving(stack.settings, stack.events, stack.sink, no_progress_s=0.3) as other:
        request_id = fresh()
        status, trailing = await status_of(other.stub.Stream(ask(request_id=request_id)))
        assert (status, trailing["headrace-code"]) == (grpc.StatusCode.UNAVAILABLE, "overloaded")
    assert stack.sink.cancelled == []


async def test_keys_tell_the_tenant_and_tenants_do_not_meet(stack: Stack, tmp_path: Path) -> None:
    """No key, a wrong key; another tenant's request is read, resumed and cancelled by nobody."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"key-a": "acme", "key-b": "bell"}')
    settings = stack.settings.model_copy(update={"api_keys_file": keys})
    async with serving(settings, stack.events, stack.sink) as guarded:
        stub = guarded.stub
        for metadata in ([], [("authorization", "Bearer nope")], [("authorization", "key-a")]):
            status, trailing = await status_of(stub.Stream(ask(), metadata=metadata))
            assert status is grpc.StatusCode.UNAUTHENTICATED
            assert trailing["headrace-code"] == "unauthorized"
        a, b = ([("authorization", f"Bearer key-{one}")] for one in "ab")
        _, *events = await read_all(stub.Stream(ask(session_id="s8"), metadata=a))
        name = events[0].request_id
        foreign = stub.Stream(resume(name, session_id="s8", starting_after=1), metadata=b)
        assert (await status_of(foreign))[0] is grpc.StatusCode.NOT_FOUND
        stolen = stub.Stream(resume(name, cursor=events[3].cursor), metadata=b)
        assert (await status_of(stolen))[0] is grpc.StatusCode.OUT_OF_RANGE
        assert stack.sink.tenants == ["acme"]


async def test_health_says_whether_the_log_is_read(stack: Stack) -> None:
    """SERVING for the server and the service; not once the log has ended."""
    async with (
        serving(stack.settings, stack.events, stack.sink) as other,
        grpc.aio.insecure_channel(other.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            found = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        await other.log.stop()
        async with asyncio.timeout(5):
            async for change in watch:
                if change.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                    break


async def test_reflection_tells_services_and_messages(stack: Stack) -> None:
    """As grpcurl asks: which services, then the file that one is in."""
    request: Any = reflection_pb2.ServerReflectionRequest
    questions = [request(list_services=""), request(file_containing_symbol=SERVICE)]
    async with grpc.aio.insecure_channel(stack.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        listed, described = [it async for it in stub.ServerReflectionInfo(iter(questions))]
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    (data,) = described.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(data).package == "headrace.v1"


async def test_the_example_of_the_documentation_runs(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed, but for the address."""
    await documented("grpc.aio", 0, "127.0.0.1:50051", stack.address)()
    assert "w3 " in capsys.readouterr().out


async def test_a_port_that_is_taken_is_an_error(stack: Stack) -> None:
    """Two gateways never share one in silence."""
    server = GrpcServer(stack.gateway)
    with pytest.raises(OSError, match="cannot listen on"):
        await server.start("127.0.0.1", int(stack.address.split(":")[1]))
    await server.stop()


async def test_calls_are_counted_by_method_and_code(stack: Stack) -> None:
    """What an operator sees of gRPC."""
    registry = stack.gateway.metrics.registry

    def count(code: str) -> float:
        labels = {"method": "Stream", "code": code}
        return registry.get_sample_value("headrace_gateway_grpc_calls_total", labels) or 0.0

    before = [count("OK"), count("INVALID_ARGUMENT")]
    await read_all(stack.stub.Stream(ask()))
    await status_of(stack.stub.Stream(ask(messages=[])))
    assert [count("OK"), count("INVALID_ARGUMENT")] == [before[0] + 1, before[1] + 1]
