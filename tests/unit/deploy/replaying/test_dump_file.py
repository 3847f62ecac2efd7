"""Dump files: compression, damage of every kind, and memory that stays small."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from headrace.deploy.replaying.dump_file import (
    DumpExistsError,
    DumpWriter,
    NoRegularFileError,
    check_dump,
    read_dump,
)
from headrace.schemas.dump import DumpError, DumpHeader, DumpRecord

HEADER = DumpHeader("headrace", 12, "2026-01-02T03:04:05Z")
RECORDS = [
    DumpRecord("request", 3, 7, 1000, 0, b"s1", b'{"prompt":"x"}', (("a", b"\xff"), ("b", None))),
    DumpRecord("request", 3, 8, 1001, 0, b"s1", None, ()),
    DumpRecord("response", 3, 9, 1002, 1, None, b"null", (("", b""),)),
]


def written(path: Path, records: list[DumpRecord] = RECORDS) -> Path:
    with DumpWriter(path, HEADER) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.zst"])
def test_a_dump_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    """Null, the word null and empty bytes are three things."""
    path = written(tmp_path / name)
    found = check_dump(path)
    assert found.header == HEADER
    assert found.counts == {"request": 2, "response": 1}
    assert found.partitions == {"request": 4, "response": 4}
    assert list(read_dump(path)) == RECORDS


def test_the_name_says_whether_it_is_compressed(tmp_path: Path) -> None:
    """When it is read, its content does."""
    plain, packed = written(tmp_path / "d.jsonl"), written(tmp_path / "d.zst")
    assert plain.read_bytes().startswith(b'{"format":"headrace-dump","version":1')
    assert zstandard.ZstdDecompressor().stream_reader(packed.read_bytes()).read() == (
        plain.read_bytes()
    )
    assert list(read_dump(packed.rename(tmp_path / "renamed"))) == RECORDS


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    """Unless somebody says otherwise."""
    path = written(tmp_path / "d.jsonl")
    with pytest.raises(DumpExistsError):
        DumpWriter(path, HEADER)
    with DumpWriter(path, HEADER, replace=True):
        pass
    assert list(read_dump(path)) == []


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """A half dump would look like one."""
    with pytest.raises(RuntimeError), DumpWriter(tmp_path / "d.zst", HEADER):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def line_of(**changes: Any) -> bytes:
    """The second line of a dump, changed; a value of `...` takes the field away."""
    body = {
        **{"kind": "request", "partition": 0, "offset": 1, "timestamp_ms": 2},
        **{"timestamp_type": 0, "key": None, "value": "{}", "headers": []},
        **changes,
    }
    return json.dumps({k: v for k, v in body.items() if v is not ...}).encode()


DAMAGE: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "no JSON": (lambda lines: [lines[0], b"{garbage", *lines[2:]], 2, "not JSON"),
    "no UTF-8": (lambda lines: [lines[0], b'"\xff"', *lines[2:]], 2, "not JSON"),
    "empty line": (lambda lines: [lines[0], b"", *lines[1:]], 2, "not JSON"),
    "an array": (lambda lines: [lines[0], b"[]", *lines[2:]], 2, "object"),
    "deep": (lambda lines: [lines[0], b"[" * 5000, *lines[2:]], 2, "not JSON"),
    "a huge number": (
        lambda lines: [lines[0], line_of(offset=10**40), *lines[2:]],
        2,
        "offset must be",
    ),
    "NaN": (lambda lines: [lines[0], line_of(offset=float("nan")), *lines[2:]], 2, "not JSON"),
    "a field is missing": (
        lambda lines: [lines[0], line_of(key=...), *lines[2:]],
        2,
        "key is required",
    ),
    "a wrong type": (
        lambda lines: [lines[0], line_of(offset="7"), *lines[2:]],
        2,
        "offset must be an integer",
    ),
    "a wrong kind": (lambda lines: [lines[0], line_of(kind="x"), *lines[2:]], 2, "kind must be"),
    "a negative partition": (
        lambda lines: [lines[0], line_of(partition=-1), *lines[2:]],
        2,
        "partition must be at least 0",
    ),
    "no base64": (
        lambda lines: [lines[0], line_of(value={"base64": "?"}), *lines[2:]],
        2,
        "value is no base64",
    ),
    "a value that is an object": (
        lambda lines: [lines[0], line_of(value={"a": 1}), *lines[2:]],
        2,
        "value must be a string",
    ),
    "headers are no pairs": (
        lambda lines: [lines[0], line_of(headers=["a"]), *lines[2:]],
        2,
        "headers must be an array of",
    ),
    "a line is missing": (lambda lines: lines[:2] + lines[3:], 4, "records should have come"),
    "a line was changed": (
        lambda lines: [*lines[:1], lines[1].replace(b"s1", b"s2"), *lines[2:]],
        5,
        "checksum",
    ),
    "cut off between lines": (lambda lines: lines[:-1], 5, "cut off"),
    "something follows": (lambda lines: [*lines, lines[1]], 6, "follows"),
    "another program's": (lambda lines: [b'{"a":1}', *lines[1:]], 1, "no dump"),
    "another version": (
        lambda lines: [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]],
        1,
        "version 1",
    ),
    "a bad prefix": (
        lambda lines: [lines[0].replace(b'"headrace",', b'"a/b",'), *lines[1:]],
        1,
        "topic_prefix",
    ),
    "nothing at all": (lambda lines: [], 1, "empty"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("packed", [False, True])
def test_damage_is_named_with_file_and_line(tmp_path: Path, kind: str, packed: bool) -> None:
    """Whatever was done to the lines."""
    change, line, text = DAMAGE[kind]
    lines = written(tmp_path / "good.jsonl").read_bytes().splitlines()
    data = b"".join(changed + b"\n" for changed in change(lines))
    path = tmp_path / "bad"
    path.write_bytes(zstandard.compress(data) if packed else data)
    with pytest.raises(DumpError) as caught:
        check_dump(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["d.jsonl", "d.zst"])
def test_a_file_that_was_cut_off_is_found_wherever(tmp_path: Path, name: str) -> None:
    """Also within a frame of the compression; its last bytes are a checksum of its own."""
    path = written(tmp_path / name, RECORDS * 50)
    data = path.read_bytes()
    for length in range(0, len(data) - 8, max(1, len(data) // 40)):
        path.write_bytes(data[:length])
        with pytest.raises(DumpError):
            check_dump(path)


def test_compressed_data_that_was_cut_off_may_unpack_to_nothing(tmp_path: Path) -> None:
    """Nothing comes out of a first block that is not whole."""
    path = written(tmp_path / "d.zst", RECORDS * 50)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DumpError, match=r"line 1: .*cut off"):
        check_dump(path)


@pytest.mark.timeout(5)
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To open one would wait for its writer, for ever and deaf to Ctrl-C; and it is read twice."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(NoRegularFileError, match="pipe is no regular file"):
        check_dump(path)


@pytest.mark.timeout(5)
def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    """A pipe, a device as /dev/stdout, or a folder: a file in its place would be a surprise."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(NoRegularFileError, match="is no regular file"):
            DumpWriter(path, HEADER, replace=True)
    assert pipe.is_fifo()


def test_damaged_compression_is_found(tmp_path: Path) -> None:
    """By its own checksum or by its structure."""
    path = written(tmp_path / "d.zst", RECORDS * 50)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DumpError):
        check_dump(path)


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    """A few kilobytes that unpack to a gigabyte, and a line of 100 MB: both are refused early."""
    packed, plain = tmp_path / "bomb.zst", tmp_path / "long"
    first = written(tmp_path / "good.jsonl").read_bytes().splitlines(keepends=True)[0]
    with packed.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
        file.write(first)
        for _ in range(100):
            file.write(b"0" * 10_000_000)
    with plain.open("wb") as raw:
        raw.write(first)
        raw.seek(100_000_000, 1)
        raw.write(b"\n")
    assert packed.stat().st_size < 200_000
    for path in (packed, plain):
        tracemalloc.start()
        with pytest.raises(DumpError, match="line 2: the line is longer than 32 MiB"):
            check_dump(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 120 * 2**20
