"""Whether a request that has no event yet is waiting in the requests topic, or was never sent.

Reads the topic once, from the time in the id where it holds one; owns nothing that lasts.
"""

import asyncio
import time
from typing import Any

from headrace.consumers.kafka_reader import as_record, bounded, find_partitions, offsets_at, reading
from headrace.consumers.replay import CLOCK_SLACK_MS, FETCH_BYTES
from headrace.schemas.request import decode_request
from headrace.schemas.request_id import time_of
from headrace.schemas.settings import Settings
from headrace.schemas.topics import partition_of

LOOKUP_TIMEOUT_S = 5.0
"""After this the request gets the benefit of the doubt: its reader waits for events."""

_POLL_MS = 200


async def may_be_waiting(
    settings: Settings, *, tenant: str, request_id: str, session_id: str | None
) -> bool:
    """False only where the whole range was read and does not hold the request.

    Raises: UnavailableError. Cancel: safe, it only reads.
    """
    try:
        async with (
            asyncio.timeout(LOOKUP_TIMEOUT_S),
            reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer,
        ):
            ends = await _seek(consumer, settings, request_id, session_id)
            return await _find(consumer, ends, tenant, request_id)
    except TimeoutError:
        return True


async def _seek(
    consumer: Any, settings: Settings, request_id: str, session_id: str | None
) -> dict[Any, int]:
    """Go to where the request can be; returns the end of each partition."""
    parts = await find_partitions(consumer, settings.topics.requests)
    if session_id is not None and session_id != request_id:
        parts = [parts[partition_of(session_id.encode(), len(parts))]]
    consumer.assign(parts)
    time_ms = time_of(request_id)
    starts = await bounded("offsets", consumer.beginning_offsets(parts))
    if time_ms is not None:
        starts = await offsets_at(consumer, parts, max(0, time_ms - CLOCK_SLACK_MS))
    ends: dict[Any, int] = await bounded("offsets", consumer.end_offsets(parts))
    for part in parts:
        consumer.seek(part, starts[part])
    return {part: end for part, end in ends.items() if starts[part] < end}


async def _find(consumer: Any, ends: dict[Any, int], tenant: str, request_id: str) -> bool:
    deadline_s = time.monotonic() + LOOKUP_TIMEOUT_S
    while ends and time.monotonic() < deadline_s:
        batch = await consumer.getmany(*ends, timeout_ms=_POLL_MS)
        for records in batch.values():
            if any(_is(record, tenant, request_id) for record in records):
                return True
        for part in list(ends):
            if await bounded("position", consumer.position(part)) >= ends[part]:
                del ends[part]
    return bool(ends)


def _is(record: Any, tenant: str, request_id: str) -> bool:
    if record.value is None:
        return False
    found = decode_request(as_record(record))
    return (found.tenant, found.request_id) == (tenant, request_id)
