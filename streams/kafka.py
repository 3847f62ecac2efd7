"""The Faust app and the three things that Faust does not do: read_committed, lease,
watermark commits.

Everything that leans on Faust's or aiokafka's private names stands in this file; each has a test
that fails when an upgrade changes it. Source: docs/decisions/001-faust.md.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import faust
import mode
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

from headrace.schemas.errors import HeadraceError
from headrace.schemas.record_batches import read_any_header_name
from headrace.schemas.settings import Settings
from headrace.streams.ledger import Place, Watermark
from headrace.streams.ownership import Lease

HEARTBEAT_INTERVAL_S = 0.3
"""How soon a worker learns that the group changes: most of the pause that a reader sees
at a hand-over.
"""

FETCH_TIMEOUT_S = 0.1
"""How long one fetch waits for records; an answer that is there comes at once."""

REQUEST_TIMEOUT_S = 90.0
"""Must exceed the rebalance timeout: JoinGroup may be answered that late."""

METADATA_PAUSE_S = 0.1

MAX_TOKEN_DIGITS = 16
"""What Redis scripts can count with. A committed offset's metadata may be anybody's."""

logger = logging.getLogger(__name__)


class _ConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]
    """Faust's consumer thread with our consumer in it."""

    _is_leaving = False

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        app: PipelineApp = self.app
        self._assignor = app.assignor
        read_any_header_name()
        consumer = AIOKafkaConsumer(
            **app.settings.kafka_options(),
            client_id="headrace-worker",
            group_id=app.conf.id,
            group_instance_id=app.settings.group_instance_id,
            partition_assignment_strategy=[app.assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=app.conf.broker_max_poll_records,
            max_poll_interval_ms=int(app.conf.broker_max_poll_interval * 1000),
            max_partition_fetch_bytes=app.conf.consumer_max_fetch_size,
            request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            session_timeout_ms=int(app.settings.session_timeout_s * 1000),
            rebalance_timeout_ms=int(app.conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(HEARTBEAT_INTERVAL_S * 1000),
        )
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        _watch_heartbeats(self._consumer, self.app)

    async def _fetch_records(
        self, consumer: Any, active_partitions: Any, timeout: float | None = None, **more: Any
    ) -> Any:
        """What was fetched, a share of each partition: aiokafka hands out all of one before the
        next, and what an earlier owner left in mid-sentence stands first in each.

        With a short wait: Faust's 1 s would hold back a rebalance's seeks and commits.
        """
        if self._is_leaving:  # a rebalance may have started the flow again
            await asyncio.sleep(FETCH_TIMEOUT_S)
            return {}
        fetched = [tp for tp in list(consumer._fetcher._records) if tp in active_partitions]
        limit = self.app.conf.broker_max_poll_records
        share = max(1, limit // max(1, len(fetched)))
        found: dict[Any, Any] = {}
        for tp in fetched:
            try:
                found |= await super()._fetch_records(consumer, {tp}, 0, share)
            except KafkaError:
                if not found:
                    raise
                break  # what was taken is handed on; the next fetch of that partition says it again
        if found:
            return found
        wait_s = FETCH_TIMEOUT_S if timeout is None else min(timeout, FETCH_TIMEOUT_S)
        return await super()._fetch_records(consumer, active_partitions, timeout=wait_s, **more)

    async def seek_to_committed(self) -> Mapping[TopicPartition, int | None]:
        """Put every partition back to its committed offset, or to its beginning
        where there is none.

        Faust calls this after each rebalance and when it has thrown fetched records away.
        aiokafka's own version does nothing for a partition with no committed offset, or with 0:
        the records thrown away there would not be read again before the next rebalance.
        """
        found: dict[TopicPartition, int | None] = await self.call_thread(self._seek_to_committed)
        return found

    async def _seek_to_committed(self) -> dict[TopicPartition, int | None]:
        assigned = list(self._consumer.assignment())
        committed = await self._fetch_committed(assigned)
        unset = [tp for tp in assigned if tp not in committed]
        if unset:
            await self._consumer.seek_to_beginning(*unset)
        for tp, (offset, _) in committed.items():
            self._consumer.seek(tp, offset)
        return {tp: committed[tp].offset if tp in committed else None for tp in assigned}

    async def _fetch_committed(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Those that have a committed offset; one request for all, where aiokafka's own
        `committed` makes one each (24 in a row at a hand-over).
        """
        found = await self._consumer._coordinator.fetch_committed_offsets(partitions)
        return {tp: one for tp, one in found.items() if one.offset >= 0}

    async def commit_watermarks(self, watermarks: Mapping[Place, Watermark]) -> set[Place]:
        """Commit in the consumer's own thread; returns what the group accepted.

        What is not assigned any more is left out; nothing is accepted while Kafka is away.
        """
        accepted: set[Place] = await self.call_thread(self._commit_watermarks, watermarks)
        return accepted

    async def _commit_watermarks(self, watermarks: Mapping[Place, Watermark]) -> set[Place]:
        assigned = self._consumer.assignment()
        places = {place for place in watermarks if TopicPartition(*place) in assigned}
        due = {TopicPartition(*place): _encode(watermarks[place]) for place in places}
        try:
            if due:
                await self._consumer.commit(due)
        except (KafkaError, IllegalStateError) as problem:
            logger.info("commit refused, it is tried again: %r", problem)
            return set()
        return places

    async def begin_watermarks(self, places: list[Place]) -> dict[Place, Watermark]:
        """Where the group goes on in each partition: committed, else the beginning.

        Raises: KafkaError.
        """
        found: dict[Place, Watermark] = await self.call_thread(self._begin_watermarks, places)
        return found

    async def _begin_watermarks(self, places: list[Place]) -> dict[Place, Watermark]:
        partitions = [TopicPartition(*place) for place in places]
        committed = await self._fetch_committed(partitions)
        unset = [tp for tp in partitions if tp not in committed]
        starts = await self._consumer.beginning_offsets(unset) if unset else {}
        found = {tp: _decode(one) for tp, one in committed.items()}
        found |= {tp: Watermark(offset) for tp, offset in starts.items()}
        return {Place(tp.topic, tp.partition): one for tp, one in found.items()}

    async def end_offsets(self, places: list[Place]) -> dict[Place, int]:
        """The end of each partition now. Raises: KafkaError."""
        found: dict[Place, int] = await self.call_thread(self._end_offsets, places)
        return found

    async def _end_offsets(self, places: list[Place]) -> dict[Place, int]:
        found = await self._consumer.end_offsets([TopicPartition(*place) for place in places])
        return {Place(tp.topic, tp.partition): offset for tp, offset in found.items()}

    async def leave(self) -> None:
        """Close the consumer, which tells the group at once that its partitions are free."""
        self._is_leaving = True
        self.consumer.stop_flow()
        if self._consumer is not None:
            # a static member is expected to come back, and would leave without a word
            self._consumer._coordinator._group_instance_id = None
            await self.call_thread(self._consumer.stop)


def _encode(watermark: Watermark) -> OffsetAndMetadata:
    return OffsetAndMetadata(watermark.offset, str(watermark.token) if watermark.token else "")


def _decode(committed: OffsetAndMetadata) -> Watermark:
    text = committed.metadata or ""
    token = int(text) if text.isascii() and text.isdigit() and len(text) < MAX_TOKEN_DIGITS else 0
    return Watermark(committed.offset, token)


def _watch_heartbeats(consumer: Any, app: "PipelineApp") -> None:
    """lease: note each heartbeat that the group answered."""
    coordinator, lease = consumer._coordinator, app.lease
    send = coordinator._do_heartbeat

    async def noted() -> bool:
        sent_s = time.monotonic()
        answered: bool = await send()
        if answered:
            lease.heartbeat_answered(sent_s)
        elif coordinator.generation <= 0:
            name = coordinator._group_instance_id
            if name is not None and lease.held(sent_s):
                asyncio.run_coroutine_threadsafe(app.crash(TwinError(name)), app.loop)
            lease.lost()
        return answered

    coordinator._do_heartbeat = noted


class TwinError(HeadraceError):
    """The group has given this worker's name to another, though this one's heartbeats came."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"another worker has the same group_instance_id {self.name!r}: each needs its own"


class _Consumer(Consumer):  # type: ignore[misc]
    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class _Transport(Transport):  # type: ignore[misc]
    Consumer = _Consumer


class PipelineApp(faust.App):  # type: ignore[misc]
    """A Faust app whose offsets are committed by us, never by Faust."""

    settings: Settings
    lease: Lease

    async def on_first_start(self) -> None:
        """Nothing: Faust would make a folder for tables, and there are none."""

    def _new_transport(self) -> _Transport:
        return _Transport(self.conf.broker_consumer, self)

    @property
    def consumer_thread(self) -> _ConsumerThread:
        thread: _ConsumerThread = self.consumer._thread
        return thread


def build_app(settings: Settings, lease: Lease) -> PipelineApp:
    """The Faust app with the defaults that would lose or stall requests changed (faust.md §3)."""
    server = settings.kafka.split(",")[0].strip()
    app = PipelineApp(
        settings.group,
        broker=f"kafka://{server}",
        store="memory://",
        web_enabled=False,
        autodiscover=False,
        topic_disable_leader=True,  # no internal topic, nothing of it is used
        topic_allow_declare=False,  # `headrace topics create` makes topics
        stream_wait_empty=False,  # a rebalance must not wait for whole generations
        stream_buffer_maxsize=64,  # prefetched prompts in memory
        broker_max_poll_records=64,
        broker_max_poll_interval=604_800.0,  # idle is not dead: liveness is ours (healthz)
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=HEARTBEAT_INTERVAL_S,
        broker_rebalance_timeout=60.0,
        broker_request_timeout=REQUEST_TIMEOUT_S,
        consumer_max_fetch_size=8 * 1024 * 1024,
        stream_processing_timeout=86_400.0,  # a full engine stops reading: not an error
        broker_commit_livelock_soft_timeout=86_400.0,
        agent_supervisor=mode.CrashingSupervisor,
        worker_redirect_stdouts=False,
    )
    app.settings, app.lease = settings, lease
    return app


def keep_through_outages(producer: AIOKafkaProducer) -> None:
    """Make a started producer wait for Kafka however long it is away.

    aiokafka gives a batch up after its request timeout where the partition has no leader, which is
    how Kafka comes back, and asks for metadata again and again without a pause (2,000 times and log
    lines a second) where it went away in order.
    """
    producer._message_accumulator._batch_ttl = math.inf
    client = producer.client
    update = client._metadata_update

    async def paced(*args: Any) -> bool:
        if await update(*args):
            return True
        await asyncio.sleep(METADATA_PAUSE_S)
        return False

    client._metadata_update = paced
