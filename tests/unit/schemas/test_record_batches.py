"""A header name that is no UTF-8 stops nobody; every record of its batch is read once."""

import aiokafka.record.memory_records
import pytest
from aiokafka.consumer import fetcher

from headrace.schemas.record_batches import read_any_header_name
from tests.odd_headers import odd_batch

VALUES = [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("compression", [0, 1], ids=["plain", "gzip"])
@pytest.mark.parametrize("odd", [set(), {0}, {1, 3}, {0, 1, 2, 3}], ids=str)
def test_every_record_is_read_once(odd: set[int], compression: int) -> None:
    """Two batches of one fetch; the odd name is escaped, all else is as it was written."""
    data = bytes(odd_batch(VALUES, odd=odd, compression=compression).build()) * 2
    read_any_header_name()
    records = fetcher.MemoryRecords(data)
    for _ in range(2):
        assert records.has_next()
        batch = records.next_batch()
        assert batch.validate_crc()
        found = list(batch)
        assert [one.value for one in found] == VALUES
        assert [one.offset for one in found] == [0, 1, 2, 3]
        assert {one.key for one in found} == {None}
        for place, one in enumerate(found):
            name = r"a\xffb" if place in odd else "name"
            assert one.headers in (((name, b"x"), ("after", None)), [(name, b"x"), ("after", None)])
    assert not records.has_next()


def test_the_usual_reader_refuses_it() -> None:
    """Else this module is not needed any more."""
    batch = aiokafka.record.memory_records.MemoryRecords(
        bytes(odd_batch(VALUES, odd={1}).build())
    ).next_batch()
    with pytest.raises(UnicodeDecodeError):
        list(batch)
