"""Requests as OpenTelemetry traces: one consumer span for each worker that had it, under the
`traceparent` of its record.

    process <requests>          CONSUMER   messaging conventions
      chat <model>              INTERNAL   GenAI conventions
        intake                  taken -> given to the engine: claim, session order, KV state
        queue                   -> its prefill began
        prefill                 -> first token made here
        decode                  -> last one
      publish <responses>       PRODUCER   first token -> the broker has the last event

The spans are made when the worker is done with a request, from what it noted on the way, so
tracing costs a generation nothing while it runs. A worker that is killed leaves none: the next
owner's spans say how many tokens it found. OpenTelemetry is an extra, `headrace[otel]`; its own
`OTEL_*` variables say where spans go and how many.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from headrace.schemas.errors import SettingsError
from headrace.schemas.headers import trace_headers
from headrace.schemas.settings import PREFIX, Settings
from headrace.streams.story import Story, Tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanKind

CLOSE_TIMEOUT_S = 2.0
"""For the spans that wait to be sent, at the end; those that are not sent then are lost."""

Value = str | bool | int | float | tuple[str, ...]

log = structlog.get_logger(__name__)


class OpenTelemetryTracer:
    """Turns stories into spans of `provider`, which samples, batches and sends them."""

    def __init__(self, provider: "TracerProvider", settings: Settings) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace")
        self._group, self._topics = settings.group, settings.topics

    def tell(self, story: Story) -> None:
        """Make its spans. They wait in a bounded queue; a full one drops them."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        moments, clock = story.moments, _Clock()
        end_s = story.ended_s
        record = story.decoded.record
        process = self._span(
            f"process {record.topic}",
            SpanKind.CONSUMER,
            _remote_context(story),
            clock.ns(moments.taken_s),
            _consumed(story, self._group),
        )
        inside = set_span_in_context(process)
        if story.start is not None:
            chat = self._span(
                f"{_operation(story)} {story.start.model}",
                SpanKind.INTERNAL,
                inside,
                clock.ns(moments.taken_s),
                _generated(story),
            )
            self._phases(story, set_span_in_context(chat), clock)
            _fail(chat, story)
            chat.end(clock.ns(moments.last_s or end_s))
        if story.num_events and moments.first_s is not None:
            topic = self._topics.responses
            publish = self._span(
                f"publish {topic}",
                SpanKind.PRODUCER,
                inside,
                clock.ns(moments.first_s),
                _published(story, topic),
            )
            publish.end(clock.ns(moments.delivered_s or end_s))
        _fail(process, story)
        process.end(clock.ns(end_s))

    async def close(self) -> None:
        """Send what waits, for CLOSE_TIMEOUT_S at the most. Cancel: the rest is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # a daemon, since an exporter tries for longer than anybody waits
        threading.Thread(target=shut_down, name="headrace-traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await done.wait()
        except TimeoutError:
            log.warning("spans were not sent in time: the collector does not answer")

    def _phases(self, story: Story, inside: "Context", clock: "_Clock") -> None:
        from opentelemetry.trace import SpanKind

        moments = story.moments
        given_s = moments.added_s  # noted behind the call, when the engine may have begun
        if given_s is not None and moments.scheduled_s is not None:
            given_s = min(given_s, moments.scheduled_s)
        edges = [
            ("intake", moments.taken_s, given_s),
            ("queue", given_s, moments.scheduled_s),
            ("prefill", moments.scheduled_s, moments.first_s),
            ("decode", moments.first_s, moments.last_s),
        ]
        for name, from_s, to_s in edges:
            if from_s is not None and to_s is not None:
                span = self._span(name, SpanKind.INTERNAL, inside, clock.ns(from_s), {})
                span.end(clock.ns(max(from_s, to_s)))

    def _span(
        self,
        name: str,
        kind: "SpanKind",
        inside: "Context",
        start_ns: int,
        attributes: Mapping[str, Value],
    ) -> "Span":
        return self._tracer.start_span(
            name, inside, kind, attributes=attributes, start_time=start_ns
        )


class _Clock:
    """Moments on the monotonic clock as nanoseconds of the epoch."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def ns(self, moment_s: float) -> int:
        return int((moment_s + self._offset_s) * 1e9)


def _remote_context(story: Story) -> "Context":
    """Where the record's `traceparent` says that the request came from; else a new trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = trace_headers(story.decoded.record.headers)
    carrier = {name: value.decode() for name, value in headers}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _consumed(story: Story, group: str) -> dict[str, Value]:
    record = story.decoded.record
    waited_s = time.time() - (time.monotonic() - story.moments.taken_s) - record.timestamp_ms / 1000
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.consumer.group.name": group,
        "messaging.kafka.offset": record.offset,
        "messaging.message.id": story.decoded.request_id,
        "headrace.outcome": story.outcome,
        "headrace.topic_wait_s": round(max(0.0, waited_s), 6),
    }


def _operation(story: Story) -> str:
    request = story.decoded.request
    return "text_completion" if request is not None and request.prompt is not None else "chat"


def _generated(story: Story) -> dict[str, Value]:
    start, request, ending = story.start, story.decoded.request, story.ending
    assert start is not None and request is not None  # noqa: S101, PT018
    found: dict[str, Value] = {
        "gen_ai.operation.name": _operation(story),
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": request.model or start.model,
        "gen_ai.response.model": start.model,
        "gen_ai.response.id": story.decoded.request_id,
        "gen_ai.conversation.id": story.decoded.session_id,
        "gen_ai.request.max_tokens": request.token_limit,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.seed": start.seed,
        "gen_ai.request.stream": request.stream,
        "gen_ai.usage.input_tokens": len(start.prompt_ids),
        "gen_ai.usage.output_tokens": story.num_tokens,
        "headrace.resumed_tokens": story.num_resumed,
    }
    if ending is not None and ending.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = (ending.finish_reason,)
        found["gen_ai.usage.cache_read.input_tokens"] = ending.cached_tokens
    return found


def _published(story: Story, topic: str) -> dict[str, Value]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(story.decoded.record.partition),
        "messaging.batch.message_count": story.num_events,
    }


def _fail(span: "Span", story: Story) -> None:
    from opentelemetry.trace import Status, StatusCode

    error = story.ending.error if story.ending is not None else None
    if error is not None:
        span.set_attribute("error.type", error.code.value)
        span.set_status(Status(StatusCode.ERROR, error.message))


def build_tracer(settings: Settings, worker_name: str) -> Tracer | None:
    """What HEADRACE_TRACES asks for; None for `off`.

    Raises: SettingsError where the extra is not installed.
    """
    if settings.traces == "off":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as problem:
        text = f"{PREFIX}TRACES={settings.traces} needs: pip install 'headrace[otel]'"
        raise SettingsError(text) from problem
    resource = Resource.create({"service.name": "headrace", "service.instance.id": worker_name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OpenTelemetryTracer(provider, settings)
