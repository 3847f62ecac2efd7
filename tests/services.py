"""The Kafka and Redis that the tests talk to: given by address, embedded, or in containers.

The only test module that reads the environment. Nothing here is skipped when a service is missing:
it raises, and the test fails. A service given by address may be shared: tests use unique names and
never flush it.

| variable | effect |
|---|---|
| `HEADRACE_KAFKA`, `HEADRACE_REDIS` | use these, start nothing |
| `HEADRACE_TEST_SERVICES=containers` | start Docker containers instead of the embedded servers |
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.deploy.processes import free_port

KAFKA_IMAGE = "apache/kafka:4.1.1"
REDIS_IMAGE = "redis:7-alpine"
CONTAINER_START_TIMEOUT_S = 120


@contextmanager
def kafka_service(folder: Path) -> Iterator[str]:
    """Yield the bootstrap address of a Kafka that answers."""
    if given := os.environ.get("HEADRACE_KAFKA"):  # noqa: TID251 - the tests' one reader
        yield given
    elif _in_containers():
        with _kafka_container() as bootstrap:
            yield bootstrap
    else:
        kafka = EmbeddedKafka(folder)
        kafka.start()
        try:
            yield kafka.bootstrap
        finally:
            kafka.stop()


@contextmanager
def redis_service(folder: Path) -> Iterator[str]:
    """Yield the URL of a Redis or Valkey that answers."""
    if given := os.environ.get("HEADRACE_REDIS"):  # noqa: TID251 - the tests' one reader
        yield given
    elif _in_containers():
        with _redis_container() as url:
            yield url
    else:
        valkey = EmbeddedValkey(folder)
        valkey.start()
        try:
            yield valkey.url
        finally:
            valkey.stop()


def _in_containers() -> bool:
    kind = os.environ.get("HEADRACE_TEST_SERVICES", "embedded")  # noqa: TID251 - ditto
    if kind not in ("embedded", "containers"):
        raise ValueError(f"HEADRACE_TEST_SERVICES={kind}: must be embedded or containers")
    return kind == "containers"


@contextmanager
def _kafka_container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = free_port()  # known before the start: the broker must advertise it
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_MESSAGE_MAX_BYTES": "8388608",
    }
    started = LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(
        CONTAINER_START_TIMEOUT_S
    )
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(9092, port).waiting_for(started)
    for name, value in settings.items():
        container.with_env(name, value)
    with container:
        yield f"127.0.0.1:{port}"


@contextmanager
def _redis_container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    ready = LogMessageWaitStrategy("Ready to accept connections").with_startup_timeout(
        CONTAINER_START_TIMEOUT_S
    )
    with DockerContainer(REDIS_IMAGE).with_exposed_ports(6379).waiting_for(ready) as container:
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
