"""From a range of the live topics to a dump: the requests, and what belongs to them.

Only reads: no group, no commits. Owns which records are taken; the file is `dump_file`'s.
"""

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.consumers.kafka_reader import as_record, find_partitions, offsets_at, reading
from headrace.consumers.log_event import decode_event
from headrace.consumers.range_reader import RangeReader, Span, readable_spans
from headrace.deploy.counted import Counted
from headrace.deploy.replaying.dump_file import DumpWriter
from headrace.deploy.replaying.selection import Selection
from headrace.producers.outgoing import TopicMissingError
from headrace.schemas.control import Cancel, Control, decode_control
from headrace.schemas.dump import DumpHeader, DumpRecord, Kind
from headrace.schemas.errors import RequestError, UnavailableError
from headrace.schemas.reply import is_last
from headrace.schemas.request import decode_request
from headrace.schemas.settings import Settings

FETCH_BYTES = 2**20
"""Kafka hands out a larger record too, alone."""

CLOCK_SLACK_MS = 300_000
"""How far the clocks of clients and workers may differ before an answer's start is missed."""

Spans = Mapping[Any, list[Span]]


@dataclass(slots=True)
class Recorded:
    """What a dump was made of."""

    num_requests: int = 0
    num_responses: int = 0
    num_unfinished: int = 0
    """Requests without the end of an answer."""
    ends: dict[int, int] = field(default_factory=dict)
    """How far each partition of requests can be read: the offset behind its last record."""

    def __str__(self) -> str:
        ends = ", ".join(f"{number}-{end}" for number, end in sorted(self.ends.items()))
        return (
            f"{self.num_requests} requests, {self.num_responses} response events; "
            f"partitions end at {ends}"
        )


async def record(
    settings: Settings,
    selection: Selection,
    path: Path,
    *,
    with_answers: bool = True,
    replace: bool = False,
) -> Recorded:
    """Write a dump of what `selection` names; its end is what can be read at the start.

    Raises: UnavailableError, DumpExistsError, OSError. Cancel: leaves no file.
    """
    async with reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        parts = await request_partitions(consumer, settings)
        recording = _Recording(consumer, settings, selection)
        spans = await recording.spans(parts)
        created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        header = DumpHeader(settings.topic_prefix, len(parts), created)
        with DumpWriter(path, header, replace=replace) as writer:
            await recording.write_requests(spans, writer)
            if with_answers:
                await recording.write_answers(writer)
                await recording.write_control(writer)
        return recording.done


async def request_partitions(consumer: Any, settings: Settings) -> list[Any]:
    """The partitions of the live requests. Raises: TopicMissingError."""
    topic = settings.topics.requests
    try:
        return await find_partitions(consumer, topic)
    except UnavailableError as problem:
        what = f"topic {topic} at {settings.kafka}"
        raise TopicMissingError(what, problem.timeout_s) from problem


class _Recording:
    def __init__(self, consumer: Any, settings: Settings, selection: Selection) -> None:
        self._consumer, self._settings, self._selection = consumer, settings, selection
        self._ids: set[tuple[str, str]] = set()
        self._sessions: set[tuple[str, str]] = set()
        self._since_ms: dict[int, int] = {}
        self.done = Recorded()

    async def spans(self, parts: list[Any]) -> Spans:
        """What is to be read of each partition of requests."""
        readable = await readable_spans(self._consumer, parts)
        self.done.ends = {part.partition: span.end for part, span in readable.items()}
        readable = await self._within_times(readable)
        found = {
            part: self._selection.limited(part.partition, span) for part, span in readable.items()
        }
        return found if self._selection.last is None else await self._last(found)

    async def _within_times(self, spans: dict[Any, Span]) -> dict[Any, Span]:
        selection = self._selection
        if selection.since_ms is not None:
            starts = await offsets_at(self._consumer, spans, selection.since_ms)
            spans = {
                part: Span(max(span.start, starts[part]), span.end) for part, span in spans.items()
            }
        if selection.until_ms is not None:
            ends = await offsets_at(self._consumer, spans, selection.until_ms)
            spans = {
                part: Span(span.start, min(span.end, ends[part])) for part, span in spans.items()
            }
        return spans

    async def _last(self, spans: Spans) -> Spans:
        """The spans that hold the newest so many requests of `spans`."""
        newest: deque[tuple[int, int]] = deque(maxlen=self._selection.last)
        async with aclosing(self._read("requests", spans, "looking for the last")) as records:
            async for one in records:
                if one.value is not None and self._is_wanted(one):
                    newest.append((one.partition, one.offset))
        firsts: dict[int, int] = {}
        for partition, offset in newest:
            firsts[partition] = min(offset, firsts.get(partition, offset))
        return {
            part: [
                Span(max(span.start, firsts[part.partition]), span.end)
                for span in several
                if span.end > firsts[part.partition]
            ]
            for part, several in spans.items()
            if part.partition in firsts
        }

    async def write_requests(self, spans: Spans, writer: DumpWriter) -> None:
        async with aclosing(self._read("requests", spans, "reading requests")) as records:
            async for one in records:
                if self._is_wanted(one):
                    writer.write(dump_record("request", one))
                    self._note(one)

    def _is_wanted(self, one: Any) -> bool:
        return self._selection.has_session_of(one.key)

    def _note(self, one: Any) -> None:
        known_ms = self._since_ms.get(one.partition, one.timestamp)
        self._since_ms[one.partition] = min(known_ms, one.timestamp)
        if one.value is None:
            return
        decoded = decode_request(as_record(one))
        self._ids.add((decoded.tenant, decoded.request_id))
        self._sessions.add((decoded.tenant, decoded.session_id))
        self.done.num_requests += 1

    async def write_answers(self, writer: DumpWriter) -> None:
        """All events of the requests that were taken, until each has its last one."""
        missing = set(self._ids)
        spans = await self._since_requests(self._settings.topics.responses)
        async with aclosing(self._read("answers", spans, "reading answers")) as records:
            async for one in records:
                found = decode_event(one)
                if found is None or (found.tenant, found.request_id) not in self._ids:
                    continue
                writer.write(dump_record("response", one))
                self.done.num_responses += 1
                if is_last(found.event):
                    missing.discard((found.tenant, found.request_id))
                if not missing:
                    break
        self.done.num_unfinished = len(missing)

    async def write_control(self, writer: DumpWriter) -> None:
        """What was asked for about these requests and sessions."""
        spans = await self._since_requests(self._settings.topics.control)
        async with aclosing(self._read("control", spans, "reading control")) as records:
            async for one in records:
                try:
                    found = decode_control(one.value or b"", tuple(one.headers or ()))
                except RequestError:
                    continue  # no worker could read it either
                if self._is_about_these(found):
                    writer.write(dump_record("control", one))

    def _is_about_these(self, found: Control) -> bool:
        if isinstance(found, Cancel):
            return (found.tenant, found.request_id) in self._ids
        return (found.tenant, found.session_id) in self._sessions

    async def _since_requests(self, topic: str) -> Spans:
        """The partitions of `topic` that have to do with requests that were taken, from then on."""
        if not self._since_ms:
            return {}
        parts = await find_partitions(self._consumer, topic)
        parts = [part for part in parts if part.partition in self._since_ms]
        readable = await readable_spans(self._consumer, parts)
        since_ms = max(0, min(self._since_ms.values()) - CLOCK_SLACK_MS)
        starts = await offsets_at(self._consumer, parts, since_ms)
        return {part: [Span(starts[part], span.end)] for part, span in readable.items()}

    async def _read(self, what: str, spans: Spans, title: str) -> AsyncGenerator[Any, None]:
        total = sum(span.num_offsets for several in spans.values() for span in several)
        reader = RangeReader(self._consumer, what)
        with Counted(title, total) as progress:
            for layer in _layers(spans):
                async with aclosing(reader.records(layer)) as records:
                    async for one in records:
                        progress.advance()
                        yield one


def _layers(spans: Spans) -> list[dict[Any, Span]]:
    """Ranges that can be read side by side: one a partition."""
    depth = max(map(len, spans.values()), default=0)
    return [
        {part: several[level] for part, several in spans.items() if len(several) > level}
        for level in range(depth)
    ]


def dump_record(kind: Kind, one: Any) -> DumpRecord:
    """A consumed record as a dump has it."""
    return DumpRecord(
        kind=kind,
        partition=one.partition,
        offset=one.offset,
        timestamp_ms=one.timestamp,
        timestamp_type=one.timestamp_type,
        key=one.key,
        value=one.value,
        headers=tuple(one.headers or ()),
    )
