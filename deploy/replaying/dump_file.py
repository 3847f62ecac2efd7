"""Dumps as files: plain or compressed with zstd, read and written a line at a time.

Owns compression and the bounds of reading: memory does not grow with the file, nor with what a
line of it claims to be. What a line means is `headrace.schemas.dump`'s.
"""

import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import zstandard

from headrace.schemas.dump import (
    MAX_LINE_BYTES,
    DumpDecoder,
    DumpEncoder,
    DumpHeader,
    DumpRecord,
    Kind,
)
from headrace.schemas.errors import HeadraceError

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CHUNK_BYTES = 256 * 1024


class DumpExistsError(HeadraceError):
    """A dump would take the place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is there already: --force replaces it"


class NoRegularFileError(HeadraceError):
    """A pipe or a device in a dump's place: it cannot be read twice, nor replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is no regular file: a dump is a file of its own"


class DumpWriter:
    """Writes a dump beside its place, and moves it there when it is complete.

    A name that ends in `.zst` is compressed. As a context manager: an error leaves no file.
    """

    def __init__(self, path: Path, header: DumpHeader, *, replace: bool = False) -> None:
        if path.exists() and not path.is_file():
            raise NoRegularFileError(path)
        if path.exists() and not replace:
            raise DumpExistsError(path)
        self._path, self._partial = path, path.with_name(f".{path.name}.partial")
        self._header, self._encoder = header, DumpEncoder()
        self._raw: IO[bytes] | None = None
        self._file: Any = None

    @property
    def num_records(self) -> int:
        """How many were written."""
        return self._encoder.num_records

    def __enter__(self) -> Self:
        self._raw = self._partial.open("wb")
        is_compressed = self._path.name.endswith(".zst")
        packer = zstandard.ZstdCompressor(write_checksum=True)
        self._file = packer.stream_writer(self._raw) if is_compressed else self._raw
        self._file.write(self._encoder.header(self._header))
        return self

    def write(self, record: DumpRecord) -> None:
        """Add one record."""
        self._file.write(self._encoder.record(record))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if problem is None:
                self._file.write(self._encoder.end())
            self._file.close()  # closes the raw one, too
            if problem is None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class DumpContents:
    """What a whole dump holds."""

    header: DumpHeader
    counts: Counter[Kind]
    partitions: dict[Kind, int]
    """How many partitions the topic of each kind must have."""


def check_dump(path: Path) -> DumpContents:
    """Read the whole dump, so that a later reading meets no surprise.

    Raises: DumpError, NoRegularFileError, OSError.
    """
    counts: Counter[Kind] = Counter()
    partitions: dict[Kind, int] = {}
    with _lines(path) as (decoder, lines):
        for line in lines:
            record = decoder.take(line)
            if record is not None:
                counts[record.kind] += 1
                needed = max(partitions.get(record.kind, 0), record.partition + 1)
                partitions[record.kind] = needed
        return DumpContents(decoder.finish(), counts, partitions)


def read_dump(path: Path) -> Iterator[DumpRecord]:
    """The records of a dump, in the file's order. Raises: as `check_dump`."""
    with _lines(path) as (decoder, lines):
        for line in lines:
            record = decoder.take(line)
            if record is not None:
                yield record
        decoder.finish()


@contextmanager
def _lines(path: Path) -> Iterator[tuple[DumpDecoder, Iterator[bytes]]]:
    decoder = DumpDecoder(str(path))
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # of a folder, `open` says it
        raise NoRegularFileError(path)
    with path.open("rb") as raw:
        is_compressed = raw.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
        raw.seek(0)
        unpacker = zstandard.ZstdDecompressor()
        file: Any = unpacker.stream_reader(raw, read_across_frames=True) if is_compressed else raw
        yield decoder, _split(file, decoder, is_compressed=is_compressed)


def _split(file: Any, decoder: DumpDecoder, *, is_compressed: bool) -> Iterator[bytes]:
    """Whole lines without their ends. What follows the last line end is a line that was cut off."""
    rest = b""
    while chunk := _read(file, decoder):
        first, *others = chunk.split(b"\n")
        _check_size(len(rest) + len(first), decoder)
        rest += first
        for line in others:
            yield rest
            rest = line
    if rest:
        raise decoder.after("the line has no end: the file was cut off")
    if is_compressed and decoder.header is None:
        raise decoder.after("the file is empty when unpacked: no dump, or one that was cut off")


def _read(file: Any, decoder: DumpDecoder) -> bytes:
    try:
        chunk: bytes = file.read(CHUNK_BYTES)
    except zstandard.ZstdError as problem:
        raise decoder.after(f"the compressed data is damaged: {problem}") from None
    return chunk


def _check_size(num_bytes: int, decoder: DumpDecoder) -> None:
    if num_bytes > MAX_LINE_BYTES:
        raise decoder.after(f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
