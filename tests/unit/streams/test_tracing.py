"""Requests as traces: which spans, under which parent, with which names of the conventions."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.schemas.settings import Settings
from headrace.streams.intake import Intake
from headrace.streams.tracing import OpenTelemetryTracer, build_tracer
from tests.unit.streams.pipeline import Pipeline, pipeline

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01".encode()

Spans = Callable[[], dict[str, ReadableSpan]]


@asynccontextmanager
async def traced() -> AsyncIterator[tuple[Pipeline, Spans]]:
    """A pipeline whose deliveries are traced into memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTelemetryTracer(provider, Settings(topic_prefix="t", group="g"))

    def spans() -> dict[str, ReadableSpan]:
        return {span.name: span for span in exporter.get_finished_spans()}

    async with pipeline() as pipe:
        parts = replace(pipe.parts, tracer=tracer)
        pipe.intake = Intake(parts, pipe.ledger, pipe.deliveries, pipe.tasks, max_open=8)
        yield pipe, spans
        pipe.intake.close()
    await tracer.close()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_request_is_one_consumer_span_under_its_traceparent() -> None:
    """With the phases below it, in their order, and the publishing beside them."""
    async with traced() as (pipe, spans):
        record = pipe.record("r1", "hi", max_tokens=5)
        await pipe.take(replace(record, headers=[("traceparent", TRACEPARENT)]))
        await pipe.say("r1", "a")
        await pipe.say("r1", "b", finish=True)
        await pipe.finished("r1")
        await pipe.until(lambda: "process requests" in spans())
        found = spans()
    model = pipe.parts.model.name
    process, chat = found["process requests"], found[f"text_completion {model}"]
    assert process.parent is not None
    assert (f"{process.parent.trace_id:032x}", f"{process.parent.span_id:016x}") == (
        TRACE_ID,
        PARENT_ID,
    )
    parents = {name: span.parent.span_id for name, span in found.items() if span.parent is not None}
    assert process.context is not None
    assert chat.context is not None
    phases = ["intake", "queue", "prefill", "decode"]
    assert {parents[name] for name in phases} == {chat.context.span_id}
    assert {parents[chat.name], parents["publish t.responses"]} == {process.context.span_id}
    edges = [edge for name in phases for edge in (found[name].start_time, found[name].end_time)]
    assert edges == sorted(edges, key=lambda edge: edge or 0)
    assert (process.kind, chat.kind) == (SpanKind.CONSUMER, SpanKind.INTERNAL)


async def test_spans_have_the_names_of_the_conventions() -> None:
    """Messaging for what Kafka did, GenAI for what the model did."""
    async with traced() as (pipe, spans):
        await pipe.send("r1", "hi", max_tokens=5, temperature=0.5)
        await pipe.say("r1", "a")
        await pipe.say("r1", "b", finish=True)
        await pipe.finished("r1")
        await pipe.until(lambda: "process requests" in spans())
        found = spans()
    process = attributes(found["process requests"])
    assert process.pop("headrace.topic_wait_s") == pytest.approx(0, abs=5)
    assert process == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "requests",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "g",
        "messaging.kafka.offset": pipe.offsets["r1"],
        "messaging.message.id": "r1",
        "headrace.outcome": "delivered",
    }
    model = pipe.parts.model.name
    chat = attributes(found[f"text_completion {model}"])
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.conversation.id": "s1",
        "headrace.resumed_tokens": 0,
    }
    assert expected == {name: chat[name] for name in expected}
    publish = attributes(found["publish t.responses"])
    assert publish["messaging.operation.type"] == "send"
    assert publish["messaging.batch.message_count"] == len(pipe.publisher.log)


async def test_a_broken_traceparent_is_no_parent() -> None:
    """A header with a broken value is ignored: the request has a trace of its own."""
    async with traced() as (pipe, spans):
        record = pipe.record("r1")
        await pipe.take(replace(record, headers=[("traceparent", b"00-zz"), ("baggage", None)]))
        await pipe.say("r1", "a", finish=True)
        await pipe.finished("r1")
        await pipe.until(lambda: "process requests" in spans())
        assert spans()["process requests"].parent is None


async def test_a_failed_request_has_its_error_code_in_the_span() -> None:
    """And the status that says so."""
    async with traced() as (pipe, spans):
        await pipe.send("r1", model="another")
        await pipe.finished("r1")
        await pipe.until(lambda: "process requests" in spans())
        process = spans()["process requests"]
    assert attributes(process)["error.type"] == "model_not_found"
    assert process.status.status_code is StatusCode.ERROR


async def test_a_request_that_moves_away_says_so() -> None:
    """Its tokens up to then are counted; the next owner has a span of its own."""
    async with traced() as (pipe, spans):
        await pipe.send("r1", "hi", max_tokens=50)
        await pipe.say("r1", "a")
        pipe.lose_partitions()
        await pipe.until(lambda: "process requests" in spans())
        assert attributes(spans()["process requests"])["headrace.outcome"] == "not ours"


async def test_a_collector_that_does_not_answer_does_not_hold_up_the_end() -> None:
    """What waits to be sent is lost then."""
    stuck, never = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class StuckProvider(TracerProvider):
        def shutdown(self) -> None:
            loop.call_soon_threadsafe(stuck.set)
            never.wait(10)

    tracer = OpenTelemetryTracer(StuckProvider(shutdown_on_exit=False), Settings())
    started_s = loop.time()
    await tracer.close()
    never.set()
    assert stuck.is_set()
    assert loop.time() - started_s < 5


def test_traces_are_off_unless_asked_for() -> None:
    """Nothing of OpenTelemetry is touched then."""
    assert build_tracer(Settings(), "w") is None
