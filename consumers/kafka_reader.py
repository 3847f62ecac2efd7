"""A consumer of one topic that joins no group: no rebalances, a bound on every wait.

Owns the aiokafka client's life cycle and the translation of its errors. Knows nothing of events.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from headrace.schemas.errors import UnavailableError
from headrace.schemas.record_batches import read_any_header_name
from headrace.schemas.request import Record
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import finish_despite_cancel

T = TypeVar("T")

KAFKA_TIMEOUT_S = 10.0
"""For one question to the brokers: a leader election takes less, a lost broker is told from a slow
one.
"""

STOP_TIMEOUT_S = 5.0


async def bounded(what: str, work: Awaitable[T], timeout_s: float = KAFKA_TIMEOUT_S) -> T:
    """`work` within `timeout_s`. Raises: UnavailableError for no answer in time and for Kafka's
    errors.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except (TimeoutError, KafkaError) as problem:
        raise UnavailableError(f"Kafka ({what})", timeout_s, _reason(problem)) from problem


def _reason(problem: TimeoutError | KafkaError) -> str | None:
    """What it was, where that was known before the time was over."""
    if isinstance(problem, TimeoutError):
        return None
    if isinstance(problem, KafkaConnectionError):
        return "cannot be reached"
    return f"has no answer: {type(problem).__name__}"


async def open_consumer(
    settings: Settings,
    *,
    max_partition_fetch_bytes: int,
    group: str | None = None,
    fetch_max_wait_ms: int = 500,
) -> Any:
    """A started consumer that joins no group; the caller stops it with `close_consumer`.

    `group`: whose offsets it may commit. `fetch_max_wait_ms`: how long brokers wait for a record at
    the end of the log; meanwhile the connection answers nothing else.
    """
    read_any_header_name()
    consumer = AIOKafkaConsumer(
        group_id=group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="none",
        max_partition_fetch_bytes=max_partition_fetch_bytes,
        fetch_max_wait_ms=fetch_max_wait_ms,
        request_timeout_ms=int(KAFKA_TIMEOUT_S * 1000),
        **settings.kafka_options(),
    )
    await start_or_close(consumer.start(), lambda: close_consumer(consumer), settings)
    return consumer


async def start_or_close(
    start: Coroutine[Any, Any, None], close: Callable[[], Awaitable[None]], settings: Settings
) -> None:
    """Start one of aiokafka's clients; it is closed where that fails. Raises: UnavailableError.

    NOTE: aiokafka leaks its first connection if `start` is cancelled, so it runs to its end or its
    own timeout, and is awaited on every path. Its `stop` raises CancelledError if the tasks that it
    started never took their first step: hence the sleep.
    """
    starting = asyncio.create_task(start, name="kafka.start")
    try:
        async with asyncio.timeout(KAFKA_TIMEOUT_S):
            await asyncio.shield(starting)
        await asyncio.sleep(0)
    except (TimeoutError, KafkaError) as problem:
        await _give_up(starting, close)
        what = f"Kafka at {settings.kafka}"
        raise UnavailableError(what, KAFKA_TIMEOUT_S, _reason(problem)) from problem
    except BaseException:
        await _give_up(starting, close)
        raise


async def _give_up(starting: "asyncio.Task[None]", close: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait({starting}, timeout=STOP_TIMEOUT_S)
    starting.cancel()
    await asyncio.wait({starting})
    if not starting.cancelled():
        starting.exception()  # the one that is raised says it
    await close()


async def close_consumer(consumer: Any) -> None:
    """Stop a consumer; one that does not end in time is left to the garbage collector.

    Cancel: delayed until it is stopped; half a stop would leave its connections open.
    """
    await finish_despite_cancel(_stop(consumer))


async def _stop(consumer: Any) -> None:
    """In a task of its own.

    NOTE: while brokers are away, aiokafka cancels its fetch in the pause between two tries, and
    hands that on as if its caller had been cancelled, with the client left open, which would ask
    for metadata for ever.
    """
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            try:
                await consumer.stop()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                await consumer._client.close()
    except (TimeoutError, KafkaError):
        return  # nothing was to be committed: there is nothing to lose


@asynccontextmanager
async def reading(
    settings: Settings, *, max_partition_fetch_bytes: int, group: str | None = None
) -> AsyncIterator[Any]:
    """`open_consumer` and `close_consumer` around a block."""
    consumer = await open_consumer(
        settings, max_partition_fetch_bytes=max_partition_fetch_bytes, group=group
    )
    try:
        yield consumer
    finally:
        await close_consumer(consumer)


async def find_partitions(consumer: Any, topic: str) -> list[Any]:
    """The topic's partitions. Raises: UnavailableError while there is no such topic."""
    try:
        async with asyncio.timeout(KAFKA_TIMEOUT_S):
            # NOTE: not by assigning one, which would have no position, and aiokafka would hand that
            # error out later, for whatever is read then
            numbers = await consumer._client._wait_on_metadata(topic)
        return [TopicPartition(topic, number) for number in sorted(numbers)]
    except (TimeoutError, KafkaError) as problem:
        raise UnavailableError(f"Kafka (topic {topic})", KAFKA_TIMEOUT_S) from problem


async def offsets_at(consumer: Any, partitions: Iterable[Any], time_ms: int) -> dict[Any, int]:
    """The first offset of each partition whose record is not older than `time_ms`, else its end."""
    wanted = list(partitions)
    found = await bounded("offsets", consumer.offsets_for_times(dict.fromkeys(wanted, time_ms)))
    ends = await bounded("offsets", consumer.end_offsets(wanted))
    return {part: found[part].offset if found.get(part) else ends[part] for part in wanted}


def as_record(consumed: Any) -> Record:
    """What aiokafka's consumer gave, as the schemas take it."""
    return Record(
        topic=consumed.topic,
        partition=consumed.partition,
        offset=consumed.offset,
        timestamp_ms=consumed.timestamp,
        key=consumed.key,
        value=consumed.value,
        headers=tuple(consumed.headers or ()),
    )
