"""Dumps: what is written is read, and no damage passes for a dump."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.dump import (
    MAX_LINE_BYTES,
    DumpDecoder,
    DumpEncoder,
    DumpError,
    DumpHeader,
    DumpRecord,
)

HEADER = DumpHeader("headrace", 12, "2026-01-02T03:04:05Z")
NUMBER = st.integers(0, 2**63 - 1)
DATA = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
RECORD = st.builds(
    DumpRecord,
    kind=st.sampled_from(["request", "response", "control"]),
    partition=st.integers(0, 1000),
    offset=NUMBER,
    timestamp_ms=NUMBER,
    timestamp_type=st.integers(0, 1),
    key=DATA,
    value=DATA,
    headers=st.lists(st.tuples(st.text(max_size=5), DATA), max_size=3).map(tuple),
)


def encoded(records: list[DumpRecord]) -> list[bytes]:
    encoder = DumpEncoder()
    return [encoder.header(HEADER), *map(encoder.record, records), encoder.end()]


def decoded(lines: list[bytes]) -> list[DumpRecord]:
    decoder = DumpDecoder("file")
    found = [decoder.take(line.removesuffix(b"\n")) for line in lines]
    assert decoder.finish() == HEADER
    return [record for record in found if record is not None]


@given(st.lists(RECORD, max_size=5))
def test_what_is_written_is_read(records: list[DumpRecord]) -> None:
    """Byte by byte; null stays null."""
    assert records == decoded(encoded(records))


@given(st.lists(RECORD, min_size=1, max_size=3), st.data())
def test_a_lost_line_is_found(records: list[DumpRecord], data: st.DataObject) -> None:
    """Whichever it is."""
    lines = encoded(records)
    del lines[data.draw(st.integers(0, len(lines) - 1))]
    with pytest.raises(DumpError):
        decoded(lines)


@given(st.lists(RECORD, max_size=2), st.data())
def test_a_changed_byte_is_found(records: list[DumpRecord], data: st.DataObject) -> None:
    """Wherever it stands."""
    lines = encoded(records)
    number = data.draw(st.integers(0, len(lines) - 1))
    line = bytearray(lines[number])
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DumpError):
        decoded([*lines[:number], bytes(line), *lines[number + 1 :]])


@pytest.mark.parametrize("byte", [b"\x01", b"\xff", b"a", "\u00e9".encode(), b'"', b"\n"])
def test_the_longest_record_fits_a_line(byte: bytes) -> None:
    """Escapes of JSON take six bytes for one; such values go as base64."""
    largest = byte * (16_200_000 // len(byte))
    line = DumpEncoder().record(DumpRecord("response", 0, 0, 0, 0, None, largest, ()))
    assert len(line) <= MAX_LINE_BYTES
