"""Offsets that are no records: transaction markers and aborted records at the end of a partition.

Nobody is handed them, so the ledger cannot finish them; without this, an idle group would show a lag that
is no work. Only what a second, group-less reader has found empty is stepped over. What it finds full was
fetched and thrown away on the way here (Faust does that around rebalances): it is read again.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from headrace.schemas.settings import Settings
from headrace.streams.intake import Intake
from headrace.streams.kafka import PipelineApp
from headrace.streams.ledger import AckLedger, Place

LOOK_INTERVAL_S = 1.0
LOOK_TIMEOUT_S = 3.0

log = structlog.get_logger(__name__)

Gap = tuple[int, int]
"""[start, end): the offset after the last record taken, and the partition's end."""


class GapWatcher:
    """Looks at partitions that are idle but not at their end, twice in a row with the same gap."""

    def __init__(
        self, settings: Settings, app: PipelineApp, ledger: AckLedger, intake: Intake
    ) -> None:
        self._settings, self._app = settings, app
        self._ledger, self._intake = ledger, intake
        self._seen: dict[Place, Gap] = {}

    async def look(self, places: Iterable[Place]) -> None:
        """Step over what is empty in `places`. Raises: KafkaError, TimeoutError (try again later)."""
        async with asyncio.timeout(2 * LOOK_TIMEOUT_S):
            gaps = await self._gaps([place for place in places if not self._ledger.is_busy(place)])
            lasting = {place: gap for place, gap in gaps.items() if self._seen.get(place) == gap}
            self._seen = gaps
            if not lasting:
                return
            ends = await self._empty_up_to(lasting)
            for place, (start, _) in lasting.items():
                if place in ends:
                    self._ledger.step_over(place, start, ends[place])
                elif not self._intake.is_taking and not self._ledger.is_busy(place):
                    await self._read_again(place, start)

    async def _read_again(self, place: Place, start: int) -> None:
        log.warning("records were fetched and not taken: read again", place=place, offset=start)
        await self._app.consumer.seek(TP(*place), start)

    async def _gaps(self, places: list[Place]) -> dict[Place, Gap]:
        if not places:
            return {}
        thread = self._app.consumer_thread
        gaps = {}
        for place, end in (await thread.end_offsets(places)).items():
            start = self._ledger.idle_from(place)
            if start is None:
                start = await thread.committed(place) or 0
            if start < end:
                gaps[place] = (start, end)
        return gaps

    async def _empty_up_to(self, gaps: dict[Place, Gap]) -> dict[Place, int]:
        """How far each gap holds no committed record; a gap with a record in it is left out."""
        consumer = AIOKafkaConsumer(
            **self._settings.kafka_options(),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            places = {TopicPartition(*place): place for place in gaps}
            consumer.assign(list(places))
            for partition, place in places.items():
                consumer.seek(partition, gaps[place][0])
            found: set[TopicPartition] = set()
            positions: dict[TopicPartition, int] = {}
            deadline_s = asyncio.get_running_loop().time() + LOOK_TIMEOUT_S
            while asyncio.get_running_loop().time() < deadline_s:
                found |= (await consumer.getmany(timeout_ms=100)).keys()
                positions = {one: await consumer.position(one) for one in places}
                if all(
                    one in found or positions[one] >= gaps[place][1]
                    for one, place in places.items()
                ):
                    break
        finally:
            await consumer.stop()
        return {
            place: positions[one]
            for one, place in places.items()
            if one not in found and positions[one] > gaps[place][0]
        }

    async def watch(self, owned: Callable[[], Iterable[Place]]) -> None:
        """Look for ever, on a timer. Cancel: safe."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.look(owned())
            except (KafkaError, TimeoutError):
                continue  # Kafka is away: nothing is known, nothing is stepped over
