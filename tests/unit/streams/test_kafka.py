"""The private names of Faust and aiokafka that streams/kafka.py leans on are still there."""

import inspect
import math
import time
from contextlib import nullcontext
from types import SimpleNamespace

import faust
import pytest
from aiokafka import AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

from headrace.schemas.settings import Settings
from headrace.streams.kafka import (
    METADATA_PAUSE_S,
    PipelineApp,
    _ConsumerThread,
    _decode,
    _encode,
    build_app,
    keep_through_outages,
)
from headrace.streams.ledger import Watermark
from headrace.streams.ownership import Lease


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (AIOKafkaConsumerThread, "_create_worker_consumer"),
        (AIOKafkaConsumerThread, "_fetch_records"),
        (AIOKafkaConsumerThread, "seek_to_committed"),
        (AIOKafkaConsumerThread, "call_thread"),
        (Consumer, "_new_consumer_thread"),
        (BaseConsumer, "perform_seek"),
        (faust.App, "_new_transport"),
        (GroupCoordinator, "_do_heartbeat"),
        (GroupCoordinator, "fetch_committed_offsets"),
        (AIOKafkaClient, "_metadata_update"),
    ],
)
def test_what_is_overridden_exists(owner: type, name: str) -> None:
    """An override of a name that an upgrade took away would silently do nothing."""
    assert callable(getattr(owner, name))


def test_a_fetch_still_takes_the_arguments_that_are_handed_on() -> None:
    """`_fetch_records` is shortened in its timeout only."""
    parameters = list(inspect.signature(AIOKafkaConsumerThread._fetch_records).parameters)
    assert parameters[:4] == ["self", "consumer", "active_partitions", "timeout"]


class Fetched:
    """Records of one partition, as aiokafka's fetcher keeps them."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def getall(self, max_records: int) -> list[str]:
        taken, self._names = self._names[:max_records], self._names[max_records:]
        return taken

    def has_more(self) -> bool:
        return bool(self._names)


async def test_a_fetch_hands_out_a_share_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka's own gives all of the first one. Streams in mid-sentence stand first in each, and
    those of the last partition waited until the worker had room again.
    """
    fetcher = Fetcher.__new__(Fetcher)
    monkeypatch.setattr("aiokafka.consumer.fetcher.FetchResult", Fetched)
    parts = [TopicPartition("requests", number) for number in range(4)]
    fetcher._records = {
        part: Fetched([f"{part.partition}-{n}" for n in range(99)]) for part in parts
    }
    fetcher._closed = False
    fetcher._subscriptions = SimpleNamespace(
        reassignment_in_progress=False, fetch_context=nullcontext, is_assigned=lambda _: True
    )
    fetcher._wait_consume_future = None
    consumer = SimpleNamespace(_fetcher=fetcher, _closed=False)
    thread = _ConsumerThread.__new__(_ConsumerThread)
    thread.consumer = SimpleNamespace(flow_active=True)
    thread.app = SimpleNamespace(conf=SimpleNamespace(broker_max_poll_records=64))
    found = await thread._fetch_records(consumer, set(parts), max_records=64)
    assert {part: len(records) for part, records in found.items()} == dict.fromkeys(parts, 16)
    assert [records[0] for records in found.values()] == ["0-0", "1-0", "2-0", "3-0"]


def test_faust_makes_our_consumer_and_commits_nothing() -> None:
    """The app's transport makes the consumer that reads committed records only."""
    app = build_app(Settings(), Lease(6.0))
    transport = app._new_transport()
    assert isinstance(app, PipelineApp)
    assert isinstance(transport, Transport)
    assert type(transport).Consumer is not Consumer
    assert app.conf.stream_wait_empty is False
    assert app.conf.topic_allow_declare is False


async def test_a_producer_waits_for_kafka_however_long_and_asks_for_it_at_leisure() -> None:
    """Its batches expired after 40 s without a leader, which ended the worker; and it asked for
    metadata 2,000 times a second.
    """
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    assert producer._message_accumulator._batch_ttl == 40.0
    keep_through_outages(producer)
    assert producer._message_accumulator._batch_ttl == math.inf
    began_s = time.monotonic()
    assert not await producer.client._metadata_update(producer.client.cluster, [])
    assert time.monotonic() - began_s >= METADATA_PAUSE_S
    await producer.stop()


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ("1796068833074", 1796068833074),
        ("", 0),
        (None, 0),
        ("by hand", 0),
        ("-5", 0),
        ("9" * 30, 0),
    ],
)
def test_the_metadata_of_an_offset_may_be_anybodys(metadata: str | None, token: int) -> None:
    """Committed by another program, or by an earlier version: no token is known."""
    assert _decode(OffsetAndMetadata(7, metadata)) == Watermark(7, token)
    assert _decode(_encode(Watermark(7, token))) == Watermark(7, token)
