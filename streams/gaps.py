"""What the intake never saw: transaction markers, aborted records, and records that got lost
on the way.

Nobody is handed a marker, so the ledger cannot finish it, and an idle group would show a lag that
is no work. And around rebalances Faust throws fetched records away. A second, group-less consumer
looks: what it finds empty is filled in the ledger, what it finds full is read again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from enum import Enum

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from headrace.schemas.settings import Settings
from headrace.streams.intake import Intake
from headrace.streams.kafka import PipelineApp
from headrace.streams.ledger import AckLedger, Gap, Place

LOOK_INTERVAL_S = 1.0
LOOK_TIMEOUT_S = 5.0
GAP_TIMEOUT_S = 1.0
MAX_GAPS_A_LOOK = 20
"""Per partition; the rest has its turn at the next look."""

log = structlog.get_logger(__name__)


class Found(Enum):
    """What stands in a gap."""

    NOTHING = "nothing"
    RECORDS = "records"
    UNKNOWN = "unknown"
    """An open transaction, or no answer in time."""


class GapWatcher:
    """Looks at gaps that were there twice in a row."""

    def __init__(
        self, settings: Settings, app: PipelineApp, ledger: AckLedger, intake: Intake
    ) -> None:
        self._settings, self._app = settings, app
        self._ledger, self._intake = ledger, intake
        self._seen: set[tuple[Place, Gap]] = set()
        self._unread: dict[Place, tuple[int, float]] = {}  # offset, found there at (monotonic s)

    async def watch(self, owned: Callable[[], Iterable[Place]]) -> None:
        """Look for ever, on a timer. Cancel: safe."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    await self.look([place for place in owned() if self._ledger.has_begun(place)])
            except (KafkaError, TimeoutError):
                self._unread.clear()  # Kafka is away: nothing is known, so nothing is filled

    def unread_s(self, now_s: float) -> float:
        """For how long a record has stood there that is not taken, though it was read again."""
        return max((now_s - since_s for _, since_s in self._unread.values()), default=0.0)

    async def look(self, places: list[Place]) -> None:
        """Settle the gaps in `places`. Raises: KafkaError, TimeoutError (try again later)."""
        ends = await self._app.consumer_thread.end_offsets(places) if places else {}
        if self._intake.is_taking:
            ends = dict.fromkeys(ends, 0)  # the worker is full: what comes behind waits
        gaps = {
            (place, gap) for place, end in ends.items() for gap in self._ledger.gaps(place, end)
        }
        lasting, self._seen = sorted(gaps & self._seen), gaps
        starts = {(place, gap[0]) for place, gap in lasting}
        for place in [p for p, (offset, _) in self._unread.items() if (p, offset) not in starts]:
            del self._unread[place]
        if not lasting:
            return
        consumer = AIOKafkaConsumer(
            **self._settings.kafka_options(),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            for place in sorted({place for place, _ in lasting}):
                of_place = [gap for one, gap in lasting if one == place]
                await self._settle(consumer, place, of_place[:MAX_GAPS_A_LOOK])
        finally:
            await consumer.stop()

    async def _settle(self, consumer: AIOKafkaConsumer, place: Place, gaps: list[Gap]) -> None:
        for gap in gaps:
            found = await _look_into(consumer, place, gap)
            if found is Found.NOTHING:
                self._ledger.fill(place, gap)
            elif found is Found.RECORDS and not self._intake.is_taking:
                log.warning("records were fetched and not taken: read again", place=place, gap=gap)
                self._unread.setdefault(place, (gap[0], time.monotonic()))
                await self._app.consumer.seek(TP(*place), gap[0])
                return


async def _look_into(consumer: AIOKafkaConsumer, place: Place, gap: Gap) -> Found:
    partition, (start, end) = TopicPartition(*place), gap
    consumer.assign([partition])
    consumer.seek(partition, start)
    try:
        async with asyncio.timeout(GAP_TIMEOUT_S):
            while True:
                records = await consumer.getmany(partition, timeout_ms=50, max_records=1)
                if records:
                    first = records[partition][0].offset
                    return Found.RECORDS if first < end else Found.NOTHING
                if await consumer.position(partition) >= end:
                    return Found.NOTHING
    except TimeoutError:
        return Found.UNKNOWN
