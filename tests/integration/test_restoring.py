"""Restoring into topics that hold records already."""

import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from headrace.consumers.kafka_reader import find_partitions, reading
from headrace.consumers.range_reader import readable_spans
from headrace.deploy.replaying.dump_file import DumpWriter
from headrace.deploy.replaying.restoring import NotEmptyError, restore
from headrace.deploy.topics import ensure_topics
from headrace.schemas.dump import DumpHeader, DumpRecord, Kind
from headrace.schemas.settings import Settings, load_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def dump_with(path: Path, *kinds: Kind) -> Path:
    with DumpWriter(path, DumpHeader("x", 1, "2026-01-02T03:04:05Z")) as writer:
        for kind in kinds:
            writer.write(DumpRecord(kind, 0, 0, int(time.time() * 1000), 0, b"s", b"{}", ()))
    return path


async def num_records(settings: Settings, topic: str) -> int:
    async with reading(settings, max_partition_fetch_bytes=2**20) as consumer:
        spans = await readable_spans(consumer, await find_partitions(consumer, topic))
    return sum(span.num_offsets for span in spans.values())


async def test_a_topic_that_holds_records_is_left_alone(
    kafka_bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Nothing is written to the others either, unless the caller wants it."""
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    topics = settings.topics
    await ensure_topics(settings, partitions=2)
    producer = AIOKafkaProducer(**settings.kafka_options())
    await producer.start()
    for part in (0, 1):
        await producer.send_and_wait(topics.responses, b"{}", partition=part)
    await producer.stop()
    path = dump_with(tmp_path / "d.jsonl", "request", "response")
    with pytest.raises(NotEmptyError) as refused:
        await restore(settings, path)
    text = str(refused.value)
    assert text.startswith(f"topic {topics.responses} holds 2 records already, and nothing was")
    assert "--append" in text
    assert "--topic-prefix" in text
    assert await num_records(settings, topics.requests) == 0
    await restore(settings, path, append=True)
    assert await num_records(settings, topics.requests) == 1
    assert await num_records(settings, topics.responses) == 3
    await restore(settings, dump_with(tmp_path / "e.jsonl", "control"))
    assert await num_records(settings, topics.control) == 1
