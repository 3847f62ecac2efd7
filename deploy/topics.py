"""Creation and checks of the four topics (contract §1).

Owns what the topics must look like. Changes nothing on a topic that is there: growing a partition
count would move sessions to other partitions.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupIdNotFound,
    KafkaConnectionError,
    KafkaError,
    NonEmptyGroup,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import DeleteGroupsRequest

from headrace.schemas.errors import HeadraceError, UnavailableError
from headrace.schemas.settings import Settings

DEFAULT_PARTITIONS = 12
CONNECT_TIMEOUT_S = 10.0
CONNECT_PAUSE_S = 0.5
ADMIN_TIMEOUT_S = 20.0
"""For all that one call does once connected: with `CONNECT_TIMEOUT_S` no more than 30 s."""

POLL_INTERVAL_S = 0.1
BROKER_MAX_BYTES = 1_048_588
"""Kafka's default `message.max.bytes`; topics get more only where the settings ask for it."""


class TopicsError(HeadraceError):
    """Kafka refused to create or describe a topic, e.g. too few brokers for the replicas."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is: whether it exists, and with what."""

    name: str
    num_partitions: int | None
    cleanup_policy: str = "delete"
    num_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Ensured:
    """What `ensure_topics` did."""

    created: list[str]
    left: list[str]
    differences: list[str]
    """What a topic that was left has other than was asked for, one sentence each."""


async def ensure_topics(
    settings: Settings,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
) -> Ensured:
    """Create the topics that are missing and return when each has its leaders; idempotent.

    A number that is None is the default for new topics, and of no matter for those that are there.

    Raises: UnavailableError (no answer within 30 s), TopicsError (Kafka says no).
    Cancel: some topics may have been created; calling it again does the rest.
    """
    async with _admin(settings) as admin:
        wanted = _all_topics(settings)
        present = {topic.name for topic in await _describe(admin, wanted) if topic.num_partitions}
        missing = [name for name in wanted if name not in present]
        created = await _create(
            admin, settings, missing, partitions or DEFAULT_PARTITIONS, replication_factor or 1
        )
        led = await _until_led(admin, wanted)
    left = [topic for topic in led if topic.name not in created]
    return Ensured(
        created, [topic.name for topic in left], other_numbers(left, partitions, replication_factor)
    )


async def check_topics(settings: Settings) -> list[str]:
    """What differs from what workers need, one sentence each; an empty list is well.

    Raises: UnavailableError (no answer within 30 s), TopicsError (Kafka says no).
    Cancel: safe; it only reads.
    """
    async with _admin(settings) as admin:
        topics = await _describe(admin, _all_topics(settings))
        policies = await _cleanup_policies(admin, [t.name for t in topics if t.num_partitions])
    states = [TopicState(t.name, t.num_partitions, policies.get(t.name, "delete")) for t in topics]
    return differences(states, settings.topics.co_partitioned)


async def delete_topics(settings: Settings, names: list[str]) -> None:
    """Delete these topics; one that is not there is no error.

    Raises: UnavailableError (no answer within 30 s), TopicsError (Kafka says no).
    """
    async with _admin(settings) as admin:
        answer = await admin.delete_topics(names)
        for name, code in answer.topic_error_codes:
            if code not in (0, UnknownTopicOrPartitionError.errno):
                raise TopicsError(f"topic {name} was not deleted: {for_code(code).description}")


async def delete_group(settings: Settings, group: str) -> None:
    """Forget a consumer group once it has no members any more; one that is not there is no error.

    Raises: UnavailableError (no answer within 30 s), TopicsError (Kafka says no).
    """
    async with _admin(settings) as admin:
        while (problem := await _refusal(admin, group)) is not None:
            # of a member that was killed it hears later
            if not (problem.retriable or isinstance(problem, NonEmptyGroup)):
                raise TopicsError(f"group {group} was not deleted: {problem.description}")
            await asyncio.sleep(POLL_INTERVAL_S)


async def _refusal(admin: Any, group: str) -> KafkaError | None:
    """Ask once; why the group is still there. Its coordinator may move meanwhile."""
    try:
        coordinator = await admin.find_coordinator(group)
        # NOTE: aiokafka's admin client knows the request and has no method for it
        answer = await admin._send_request(DeleteGroupsRequest([group]), coordinator)
    except KafkaError as problem:
        return problem
    ((_, code),) = answer.results
    return None if code in (0, GroupIdNotFound.errno) else for_code(code)()


def differences(states: list[TopicState], co_partitioned: tuple[str, ...]) -> list[str]:
    """The sentences of `check_topics`, from what was found."""
    found = [
        f"topic {topic.name} is missing: create it with `headrace topics create`"
        for topic in states
        if topic.num_partitions is None
    ]
    counts = {t.name: t.num_partitions for t in states if t.num_partitions}
    same = {name: counts[name] for name in co_partitioned if name in counts}
    if len(set(same.values())) > 1:
        text = ", ".join(f"{name} has {count}" for name, count in same.items())
        found.append(f"partition counts must be equal: {text}")
    found += [
        f"topic {topic.name} has cleanup.policy={topic.cleanup_policy}: "
        "compaction would lose records, it must be delete"
        for topic in states
        if "compact" in topic.cleanup_policy
    ]
    return found


def other_numbers(
    states: list[TopicState], partitions: int | None, replication_factor: int | None
) -> list[str]:
    """`a has 12 partitions, not 24` for each number that was asked for and is another."""
    return [
        f"{topic.name} has {_counted(found, noun)}, not {wanted}"
        for topic in states
        for noun, found, wanted in (
            ("partition", topic.num_partitions, partitions),
            ("replica", topic.num_replicas, replication_factor),
        )
        if wanted is not None and found is not None and found != wanted
    ]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _all_topics(settings: Settings) -> list[str]:
    return [*settings.topics.co_partitioned, settings.topics.dlq]


@asynccontextmanager
async def _admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A connected admin client; what the block awaits is bounded too."""
    what = f"Kafka at {settings.kafka}"
    admin = AIOKafkaAdminClient(
        **settings.kafka_options(), request_timeout_ms=int(CONNECT_TIMEOUT_S * 1000)
    )
    try:
        await _connect(admin, what)
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                yield admin
        except TimeoutError as problem:
            raise UnavailableError(what, ADMIN_TIMEOUT_S) from problem
        except KafkaError as problem:
            raise TopicsError(f"{what}: {problem!r}") from problem
    finally:
        await admin.close()


async def _connect(admin: AIOKafkaAdminClient, what: str) -> None:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while True:
                try:
                    await admin.start()
                    return
                except KafkaConnectionError:  # nobody listens yet
                    await asyncio.sleep(CONNECT_PAUSE_S)
    except TimeoutError as problem:
        raise UnavailableError(what, CONNECT_TIMEOUT_S) from problem
    except KafkaError as problem:
        raise TopicsError(f"{what} refused us: {problem!r}") from problem


async def _until_led(admin: AIOKafkaAdminClient, names: list[str]) -> list[TopicState]:
    """Wait until each topic has its leaders; the caller sets the bound."""
    while True:
        topics = await _describe(admin, names)
        if all(topic.num_partitions for topic in topics):
            return topics
        await asyncio.sleep(POLL_INTERVAL_S)


async def _describe(admin: AIOKafkaAdminClient, names: list[str]) -> list[TopicState]:
    """Each topic as the broker sees it now; one without leaders yet counts as missing."""
    found = {topic["topic"]: topic for topic in await admin.describe_topics(names)}
    return [
        TopicState(
            name, _num_partitions(found.get(name)), num_replicas=_num_replicas(found.get(name))
        )
        for name in names
    ]


def _num_partitions(topic: dict[str, Any] | None) -> int | None:
    if topic is None or topic["error_code"] or not topic["partitions"]:
        return None
    if any(partition["leader"] < 0 for partition in topic["partitions"]):
        return None
    return len(topic["partitions"])


def _num_replicas(topic: dict[str, Any] | None) -> int | None:
    if topic is None or not topic["partitions"]:
        return None
    return min(len(partition["replicas"]) for partition in topic["partitions"])


async def _create(
    admin: AIOKafkaAdminClient,
    settings: Settings,
    names: list[str],
    partitions: int,
    replication_factor: int,
) -> list[str]:
    if not names:
        return []
    topics = [
        NewTopic(name, partitions, replication_factor, topic_configs=_configs(settings, name))
        for name in names
    ]
    answer = (await admin.create_topics(topics)).to_object()
    return [topic["topic"] for topic in answer["topic_errors"] if _is_created(topic)]


def _configs(settings: Settings, name: str) -> dict[str, str]:
    """What workers write may be larger than what they read: a dead letter has more headers, and an
    answer may repeat its prompt as token ids.
    """
    topics = settings.topics
    written = name in (topics.responses, topics.dlq)
    limit = settings.max_response_bytes if written else settings.max_record_bytes
    configs = {"cleanup.policy": "delete"}
    if limit > BROKER_MAX_BYTES:
        configs["max.message.bytes"] = str(limit)
    return configs


def _is_created(topic: dict[str, Any]) -> bool:
    error = for_code(topic["error_code"])
    if error is TopicAlreadyExistsError:  # somebody was faster, or its leaders were not elected yet
        return False
    if topic["error_code"]:
        reason = topic.get("error_message") or error.description
        raise TopicsError(f"topic {topic['topic']} was not created: {reason}")
    return True


async def _cleanup_policies(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    wanted = [
        ConfigResource(ConfigResourceType.TOPIC, name, {"cleanup.policy": None}) for name in names
    ]
    found: dict[str, str] = {}
    for answer in await admin.describe_configs(wanted):
        for _code, _message, _kind, topic, entries in answer.resources:
            policies = [entry[1] for entry in entries if entry[0] == "cleanup.policy"]
            found[topic] = ",".join(policies)
    return found
