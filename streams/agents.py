"""The two Faust agents: raw records of the request and control topics, handed to the intake.

`acks=False`: Faust tracks and commits nothing; the ledger does (docs/decisions/001-faust.md).
"""

import time
from typing import Any

import faust
import mode

from headrace.schemas.request import Record
from headrace.schemas.topics import Topics
from headrace.streams.intake import Intake
from headrace.streams.kafka import PipelineApp


def connect_agents(app: PipelineApp, topics: Topics, intake: Intake) -> None:
    """Register one agent for each topic; an exception in one ends the worker.

    Raises: RuntimeError if Faust runs its pure Python iterator, which acknowledges stale events.
    """
    if faust.streams._CStreamIterator is None:
        raise RuntimeError("faust-streaming without its C extension acknowledges stale events")

    async def take_requests(stream: Any) -> None:
        async for event in stream.noack().events():
            await intake.take_request(record_of(event.message), time.monotonic())

    async def take_control(stream: Any) -> None:
        async for event in stream.noack().events():
            intake.take_control(record_of(event.message), time.monotonic())

    for name, handler in ((topics.requests, take_requests), (topics.control, take_control)):
        topic = app.topic(
            name,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            acks=False,
        )
        app.agent(topic, name=name, concurrency=1, supervisor_strategy=mode.CrashingSupervisor)(
            handler
        )


def record_of(message: Any) -> Record:
    """A Faust message as a record: raw bytes, the timestamp in whole milliseconds again."""
    return Record(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=round((message.timestamp or 0.0) * 1000),
        key=message.key,
        value=message.value,
        headers=_headers(message.headers),
    )


def _headers(headers: Any) -> list[tuple[str, bytes | None]]:
    if not headers:
        return []
    return list(headers.items() if isinstance(headers, dict) else headers)
