"""Record batches that no client library of ours would write: header names that are no UTF-8."""

import time
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

ODD_NAME = b"a\xffb"


class _Odd(str):
    """A name whose bytes are those of ODD_NAME."""

    def encode(self, *_: Any) -> bytes:
        return ODD_NAME


def odd_batch(values: list[bytes], *, odd: set[int], compression: int = 0) -> Any:
    """A builder that holds `values`; those at the places in `odd` have the odd header name."""
    builder = _DefaultRecordBatchBuilderPy(2, compression, 0, -1, -1, 0, 1_000_000)
    for place, value in enumerate(values):
        name = _Odd("") if place in odd else "name"
        builder.append(place, int(time.time() * 1000), None, value, [(name, b"x"), ("after", None)])
    return builder


async def send_odd(
    producer: AIOKafkaProducer, topic: str, partition: int, values: list[bytes], *, odd: set[int]
) -> int:
    """Write `values` as one batch; returns the first one's offset."""
    batch = producer.create_batch()
    batch._builder = odd_batch(values, odd=odd)
    batch._relative_offset = len(values)
    written = await (await producer.send_batch(batch, topic, partition=partition))
    return int(written.offset)
