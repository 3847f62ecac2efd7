"""Record batches that hold a header name which is no UTF-8: read like any other.

Kafka's protocol calls a header's name a string, and brokers take any bytes. aiokafka decodes it
strictly while it unpacks a batch, so one such record would stop every consumer of its partition.
Here its bytes are escaped (`\\\\xff`): a name that nobody looks for. Leans on names of aiokafka;
a test on a real broker fails when an upgrade changes them.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

_MAGIC_WITH_HEADERS = 2


def read_any_header_name() -> None:
    """Have every consumer of this process read such records from now on. Safe to call again."""
    fetcher.MemoryRecords = _Records


class _Records(_MemoryRecordsPy):  # type: ignore[misc]  # final: for whoever only looks at types
    """What one fetch brought of a partition."""

    def next_batch(self) -> Any:
        data, batch = self._next_slice, super().next_batch()
        return _Batch(batch, data) if batch.magic >= _MAGIC_WITH_HEADERS else batch


class _Batch:
    """A batch of aiokafka's fast reader; from the first name that it refuses, of its slow one."""

    def __init__(self, batch: DefaultRecordBatch, data: memoryview) -> None:
        self._batch, self._data = batch, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        num_read = 0
        try:
            for record in self._batch:
                num_read += 1
                yield record
        except UnicodeDecodeError:
            for number, record in enumerate(_AnyName(self._data)):
                if number >= num_read:
                    yield record


class _AnyName(_DefaultRecordBatchPy):  # type: ignore[misc]  # final, as above
    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Escaping(self._buffer)


class _Escaping(bytearray):
    """Decodes itself, and its slices, without an error."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Escaping(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", _errors: str = "") -> str:
        return super().decode(encoding, "backslashreplace")
