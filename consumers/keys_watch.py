"""Watches the keys file, so that keys come and go while the gateway serves.

Owns one task. A file that is away or broken changes nothing: the last good keys stay.
"""

import asyncio
from pathlib import Path

import structlog

from headrace.consumers.api_keys import ApiKeys, KeyTable, parse_keys_file, read_keys_file
from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.schemas.errors import SettingsError
from headrace.schemas.tasks import OwnedTask

INTERVAL_S = 1.0
"""A key that is taken out is refused within this and the time of one reading."""

_log = structlog.get_logger(__name__)


class KeysWatch:
    """Reads the file again and again from `start` to `stop`.

    NOTE: it compares the contents, not times and sizes: a file may be replaced, written in place,
    or be a link whose folder is swapped (Kubernetes). 10,000 keys are 1 MB.
    """

    def __init__(
        self, path: Path, keys: ApiKeys, metrics: GatewayMetrics, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._path, self._keys, self._metrics = path, keys, metrics
        self._interval_s = interval_s
        self._data: bytes | None = None
        self._problem: str | None = None
        self._task = OwnedTask("keys-watch")

    async def start(self) -> None:
        """Begin; returns at once."""
        self._task.start(self._watch())

    async def stop(self) -> None:
        """End the task. Safe to call twice. Raises: what ended it before, if anything did."""
        await self._task.stop()

    async def _watch(self) -> None:
        while True:
            await self._read()
            await asyncio.sleep(self._interval_s)

    async def _read(self) -> None:
        try:
            table = await asyncio.to_thread(self._changed)
        except SettingsError as problem:
            if str(problem) != self._problem:  # one line for each thing that is wrong
                self._metrics.key_readings.labels("failed").inc()
                _log.warning("keys.not_read", reason=str(problem), kept="the last good keys")
            self._problem = str(problem)
            return
        self._problem = None
        if table is not None and table != self._keys.table:
            self._keys.replace(table)
            self._metrics.key_readings.labels("changed").inc()
            _log.info("keys.changed", num_keys=len(table.tenants or {}))

    def _changed(self) -> KeyTable | None:
        """The table, if the file is another than at the last reading. Raises: SettingsError."""
        data = read_keys_file(self._path)
        if data == self._data:
            return None
        table = parse_keys_file(self._path, data)
        self._data = data
        return table
