"""The private names of Faust and aiokafka that streams/kafka.py leans on are still there."""

import inspect
import math
import time

import faust
import pytest
from aiokafka import AIOKafkaProducer, OffsetAndMetadata
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

from headrace.schemas.settings import Settings
from headrace.streams.kafka import (
    METADATA_PAUSE_S,
    PipelineApp,
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
