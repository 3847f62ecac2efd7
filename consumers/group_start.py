"""Sets where a consumer group that has no members yet begins to read.

Owns one temporary consumer. Commits for the group that it is told, and for no other.
"""

from collections.abc import Mapping

from headrace.consumers.kafka_reader import bounded, find_partitions, reading
from headrace.schemas.settings import Settings

_FETCH_BYTES = 2**16


async def begin_at_ends(
    settings: Settings, topics: tuple[str, ...]
) -> Mapping[str, dict[int, int]]:
    """Commit the present ends of `topics` for the group of `settings`; returns them by partition.

    Raises: UnavailableError. Cancel: some or all may be committed.
    """
    async with reading(
        settings, max_partition_fetch_bytes=_FETCH_BYTES, group=settings.group
    ) as consumer:
        parts = [part for topic in topics for part in await find_partitions(consumer, topic)]
        consumer.assign(parts)
        ends = await bounded("offsets", consumer.end_offsets(parts))
        await bounded("commit", consumer.commit(ends))
    found: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for part, end in ends.items():
        found[part.topic][part.partition] = end
    return found
