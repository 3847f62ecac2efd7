"""Produces a dump's requests into a namespace, at their pace, a bounded number ahead of answers.

Keys, values, headers and partitions stay; the headers of a replay are added. Reads no answers.
"""

import asyncio
import time
from collections.abc import Iterable

from headrace.deploy.replaying.pace import Pace
from headrace.producers.outgoing import OutgoingRecord
from headrace.producers.record_writer import RecordWriter
from headrace.schemas.replay import replay_headers
from headrace.schemas.request import Record, decode_request

Name = tuple[str, str]
"""Tenant and request id."""


class Asking:
    """The producing half of a replay. `answered` is told by the reading half."""

    def __init__(
        self, writer: RecordWriter, topic: str, replay_id: str, *, max_in_flight: int
    ) -> None:
        self._writer, self._topic, self._replay_id = writer, topic, replay_id
        self._room = asyncio.Semaphore(max_in_flight)
        self._asked: set[Name] = set()
        self._num_answered = 0

    @property
    def is_due(self) -> bool:
        """Whether a request was asked that has no answer yet."""
        return self._num_answered < len(self._asked)

    def answered(self) -> None:
        """One more request has its last event."""
        self._num_answered += 1
        self._room.release()

    async def ask_all(self, records: Iterable[Record], pace: Pace) -> None:
        """Write all; returns when the broker has them.

        Waits for room without a bound of its own: whoever reads the answers gives up after silence.
        Raises: UnavailableError, ProduceError. Cancel: the rest is not asked.
        """
        started_s = time.monotonic()
        for record in records:
            wait_s = started_s + pace.due_s(record.timestamp_ms) - time.monotonic()
            if wait_s > 0:
                await self._writer.flush()
                await asyncio.sleep(wait_s)
            await self._ask(record)
        await self._writer.flush()

    async def _ask(self, record: Record) -> None:
        decoded = decode_request(record)
        name = (decoded.tenant, decoded.request_id)
        if record.value is not None and name not in self._asked:  # others are never answered
            self._asked.add(name)
            await self._room.acquire()
        added = replay_headers(self._replay_id, decoded.origin)
        outgoing = OutgoingRecord(
            self._topic, record.key, record.value, [*record.headers, *added], record.partition
        )
        await self._writer.write(outgoing)
