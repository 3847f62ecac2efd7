"""The embedded Kafka and Valkey: real records and keys, restarts, crashes, the parent's death."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.deploy.processes import ServiceStartError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90, func_only=True)]

GONE_TIMEOUT_S = 10.0

PARENT = """
import sys
from pathlib import Path
from headrace.deploy.embedded_valkey import EmbeddedValkey
valkey = EmbeddedValkey(Path(sys.argv[1]))
valkey.start()
print(valkey.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    kafka = EmbeddedKafka(tmp_path / "kafka")
    kafka.start()
    yield kafka
    kafka.stop()


async def create_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def first_value(bootstrap: str, topic: str) -> bytes | None:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        value: bytes | None = (await consumer.getone()).value
        return value
    finally:
        await consumer.stop()


async def test_a_record_outlives_restarts_and_crashes_of_kafka(kafka: EmbeddedKafka) -> None:
    """A record is still there after a stop and start, after a kill, and under another port."""
    await create_topic(kafka.bootstrap, "lasting")
    await produce(kafka.bootstrap, "lasting", b"water")

    kafka.stop()
    kafka.start()
    assert await first_value(kafka.bootstrap, "lasting") == b"water"

    kafka.kill()
    moved = EmbeddedKafka(kafka.data_dir)
    moved.start()
    try:
        assert moved.bootstrap != kafka.bootstrap
        assert await first_value(moved.bootstrap, "lasting") == b"water"
    finally:
        moved.stop()


def test_a_second_broker_on_one_folder_is_refused(kafka: EmbeddedKafka) -> None:
    """Two nodes on one metadata log would damage it, so the second does not even start."""
    second = EmbeddedKafka(kafka.data_dir)
    with pytest.raises(ServiceStartError, match="another one is running"):
        second.start()
    assert not second.alive
    assert kafka.alive


def test_a_server_on_a_taken_port_is_refused(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Whoever has the port would answer in the new server's place."""
    with pytest.raises(ServiceStartError, match="is taken"):
        EmbeddedValkey(tmp_path / "valkey", port=kafka.port).start()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error holds the broker's own words and the place of its log."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").write_text("version=99\n")
    kafka = EmbeddedKafka(tmp_path)
    with pytest.raises(ServiceStartError, match=r"meta\.properties") as failure:
        kafka.start()
    assert str(tmp_path / "kafka.log") in str(failure.value)
    assert not kafka.alive


async def test_the_shared_services_answer(
    kafka_bootstrap: str, redis_url: str, topic_prefix: str
) -> None:
    """The session's Kafka takes a record and gives it back; its Redis takes a key."""
    await create_topic(kafka_bootstrap, f"{topic_prefix}.x")
    await produce(kafka_bootstrap, f"{topic_prefix}.x", b"1")
    assert await first_value(kafka_bootstrap, f"{topic_prefix}.x") == b"1"
    with redis.Redis.from_url(redis_url) as client:
        client.set(f"{topic_prefix}:k", "v", ex=60)
        assert client.get(f"{topic_prefix}:k") == b"v"


@pytest.mark.parametrize("persist", [True, False])
def test_valkey_keeps_its_data_only_when_asked(tmp_path: Path, persist: bool) -> None:
    """With `persist` a key outlives an orderly restart, without it the server starts empty."""
    valkey = EmbeddedValkey(tmp_path / "valkey", persist=persist)
    valkey.start()
    try:
        with redis.Redis.from_url(valkey.url) as client:
            client.set("k", "v")
        valkey.stop()
        assert not valkey.alive
        valkey.start()
        with redis.Redis.from_url(valkey.url) as client:
            assert client.get("k") == (b"v" if persist else None)
    finally:
        valkey.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel can do it")
def test_servers_end_with_their_parent_even_by_sigkill(tmp_path: Path) -> None:
    """kill -9 of the process that started a server leaves no server behind."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "valkey")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        server_pid = int(parent.stdout.readline())
        assert os.getsid(server_pid) == server_pid, "a terminal's Ctrl-C would reach it"
        parent.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + GONE_TIMEOUT_S
    while Path(f"/proc/{server_pid}").exists():
        assert time.monotonic() < deadline_s, "the server outlived its parent"
        time.sleep(0.02)
