"""Follows a responses topic from its start until all wanted requests are answered.

Owns one temporary consumer and the bound on silence. What an event means to an answer is its
taker's to say.
"""

import time
from collections.abc import Callable
from typing import Any

from headrace.consumers.kafka_reader import bounded, find_partitions, reading
from headrace.consumers.log_event import LogEvent, decode_event
from headrace.schemas.reply import is_last
from headrace.schemas.settings import Settings

FETCH_BYTES = 2**20
_POLL_MS = 200

Name = tuple[str, str]
"""Tenant and request id."""


class AnswerFollower:
    """Waits for the last events of `wanted`.

    `on_event` gets each event of theirs, in log order; `on_finished` is called for each request
    once. While `is_due` says no, no answer is expected, and silence does not count.
    """

    def __init__(
        self,
        settings: Settings,
        wanted: set[Name],
        *,
        on_event: Callable[[LogEvent], None],
        on_finished: Callable[[], None],
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._wanted, self.missing = frozenset(wanted), set(wanted)
        self._on_event, self._on_finished, self._is_due = on_event, on_finished, is_due

    async def follow(self, *, silence_s: float) -> bool:
        """Returns whether all were answered: False once nothing has come for `silence_s`.

        Raises: UnavailableError. Cancel: safe, it only reads.
        """
        if not self.missing:
            return True
        async with reading(self._settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
            parts = await find_partitions(consumer, self._settings.topics.responses)
            starts = await bounded("offsets", consumer.beginning_offsets(parts))
            consumer.assign(parts)
            for part in parts:
                consumer.seek(part, starts[part])
            return await self._until_all(consumer, silence_s)

    async def _until_all(self, consumer: Any, silence_s: float) -> bool:
        heard_s = time.monotonic()
        while self.missing:
            found = await bounded("answers", consumer.getmany(timeout_ms=_POLL_MS))
            for records in found.values():
                for record in records:
                    self._take(decode_event(record))
            if found or not self._is_due():
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > silence_s:
                return False
        return True

    def _take(self, found: LogEvent | None) -> None:
        if found is None or (name := (found.tenant, found.request_id)) not in self._wanted:
            return
        self._on_event(found)
        if is_last(found.event) and name in self.missing:
            self.missing.discard(name)
            self._on_finished()
