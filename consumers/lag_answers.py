"""How long the newest answers in the responses topic are: a bounded look at its end."""

import time
from typing import Any

from aiokafka.errors import KafkaError

from headrace.consumers.kafka_reader import KAFKA_TIMEOUT_S, bounded, find_partitions, reading
from headrace.consumers.log_event import decode_event
from headrace.consumers.range_reader import readable_spans
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

LAST_RECORDS = 300
"""Of each partition: some ten answers of a sentence each."""

LOOK_TIMEOUT_S = 2.0
"""For all partitions; what was read by then is enough."""

FETCH_BYTES = 256 * 1024
_POLL_MS = 200


async def newest_events(settings: Settings) -> list[dict[str, Any]]:
    """The last events of answers among the newest records, the oldest first.

    Raises: UnavailableError. Cancel: safe, it only reads.
    """
    async with reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        return await _newest(consumer, settings.topics.responses)


async def _newest(consumer: Any, topic: str) -> list[dict[str, Any]]:
    found: list[tuple[int, dict[str, Any]]] = []
    spans = await readable_spans(consumer, await find_partitions(consumer, topic))
    unread = {part for part, span in spans.items() if span.num_offsets}
    if not unread:
        return []
    consumer.assign(list(unread))
    for part in unread:
        consumer.seek(part, max(spans[part].start, spans[part].end - LAST_RECORDS))
    deadline_s = time.monotonic() + LOOK_TIMEOUT_S
    while unread and time.monotonic() < deadline_s:
        found += [_dated(record) for record in await _poll(consumer)]
        unread = {
            part
            for part in unread
            if await bounded("position", consumer.position(part)) < spans[part].end
        }
    return [event for _, event in sorted(found, key=lambda one: one[0]) if "usage" in event]


async def _poll(consumer: Any) -> list[Any]:
    try:
        found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=LAST_RECORDS)
    except (KafkaError, ValueError) as problem:  # ValueError: a record that aiokafka cannot read
        raise UnavailableError("Kafka (responses)", KAFKA_TIMEOUT_S) from problem
    return [record for records in found.values() for record in records]


def _dated(record: Any) -> tuple[int, dict[str, Any]]:
    event = decode_event(record)
    return record.timestamp, {} if event is None else event.event
