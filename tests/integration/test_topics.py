"""Creating and checking the topics on a real broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headrace.deploy.topics import TopicsError, check_topics, ensure_topics
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings, load_settings

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics of this test's own."""
    return load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)


@asynccontextmanager
async def admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A plain admin client, to make topics that are wrong."""
    client = AIOKafkaAdminClient(**settings.kafka_options())
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def test_created_topics_pass_the_check(settings: Settings) -> None:
    """All four are made, with the default count, and then nothing differs."""
    done = await ensure_topics(settings)
    assert sorted(done.created) == sorted([*settings.topics.co_partitioned, settings.topics.dlq])
    assert await check_topics(settings) == []


async def test_creating_again_leaves_them_as_they_are(settings: Settings) -> None:
    """Idempotent: another count does not change topics that are there."""
    await ensure_topics(settings, partitions=3)
    done = await ensure_topics(settings, partitions=5)
    assert (done.created, len(done.left)) == ([], 4)
    assert f"{settings.topics.requests} has 3 partitions, not 5" in done.differences
    assert len(done.differences) == 4
    assert (await ensure_topics(settings)).differences == []
    assert await check_topics(settings) == []


async def test_creating_adds_only_what_is_missing(settings: Settings) -> None:
    """A start that was cut off half-way is finished by the next."""
    async with admin(settings) as client:
        await client.create_topics([NewTopic(settings.topics.control, 4, 1)])
    done = await ensure_topics(settings, partitions=4)
    assert done.left == [settings.topics.control]
    assert await check_topics(settings) == []


async def test_missing_topics_are_named(settings: Settings) -> None:
    """One sentence each, with what to do."""
    found = await check_topics(settings)
    assert len(found) == 4
    assert all("is missing" in text and "topics create" in text for text in found)


async def test_unequal_counts_are_found(settings: Settings) -> None:
    """A session would have different partition numbers in its topics."""
    async with admin(settings) as client:
        await client.create_topics([NewTopic(settings.topics.control, 4, 1)])
    await ensure_topics(settings, partitions=3)
    (found,) = await check_topics(settings)
    assert f"{settings.topics.control} has 4" in found
    assert f"{settings.topics.requests} has 3" in found


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_compaction_is_found(settings: Settings, policy: str) -> None:
    """Records of one session share a key, so compaction would lose all but the last."""
    topic = NewTopic(settings.topics.requests, 3, 1, topic_configs={"cleanup.policy": policy})
    async with admin(settings) as client:
        await client.create_topics([topic])
    await ensure_topics(settings, partitions=3)
    (found,) = await check_topics(settings)
    assert settings.topics.requests in found
    assert "cleanup.policy" in found


async def test_a_replication_factor_without_the_brokers_is_one_clear_error(
    settings: Settings,
) -> None:
    """Kafka's own words, and no topic."""
    with pytest.raises(TopicsError, match="replication"):
        await ensure_topics(settings, replication_factor=99)


async def test_larger_requests_get_topics_that_take_them(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """The broker's default of 1 MB would refuse what the settings allow."""
    settings = load_settings(
        kafka=kafka_bootstrap, topic_prefix=topic_prefix, max_request_bytes=4_000_000
    )
    from headrace.producers.request_producer import RequestProducer

    await ensure_topics(settings, partitions=1)
    producer = RequestProducer(settings)
    await producer.start()
    try:
        body = {"messages": [{"role": "user", "content": "x" * 3_900_000}]}
        assert await producer.submit(body, session_id="s1") == (0, 0)
    finally:
        await producer.stop()


@pytest.mark.timeout(40)
async def test_a_broker_that_is_away_is_one_clear_error_within_30_s() -> None:
    """Not an endless wait, and the address is named."""
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 gave no answer"):
        await check_topics(load_settings(kafka="127.0.0.1:1"))
