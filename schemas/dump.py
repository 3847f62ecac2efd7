"""The lines of a dump: records of a pipeline's topics as JSON, one a line.

The first line says what the dump is, the last one how many records it has and their checksum, so
that a dump that was cut off or changed is found out. Sans I/O: files and compression are others'.
"""

import base64
import binascii
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

import orjson
import xxhash
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from headrace.schemas.errors import HeadraceError
from headrace.schemas.wire import explain, path_text

FORMAT = "headrace-dump"
VERSION = 1
MAX_LINE_BYTES = 32 * 2**20
"""More than the largest record that workers write takes, in the longer of its two forms."""

_M = TypeVar("_M", bound=BaseModel)
Kind = Literal["request", "response", "control"]
_INT64 = 2**63
_SPARED_CHARS = 64
"""Text that people can read may take so much more than base64."""


class DumpError(HeadraceError):
    """A file is no dump, or a damaged one; says where."""

    def __init__(self, name: str, line: int, why: str) -> None:
        super().__init__(name, line, why)
        self.name, self.line, self.why = name, line, why

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}: {self.why}"


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """What a dump says of itself. `created` is an ISO 8601 time."""

    topic_prefix: str
    num_partitions: int
    created: str


@dataclass(frozen=True, slots=True)
class DumpRecord:
    """A record of the topic of this `kind`, as it stood there. `timestamp_type` is Kafka's: 0 the
    producer's time, 1 the broker's.
    """

    kind: Kind
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class DumpEncoder:
    """Makes the lines of one dump, in order: `header`, any number of `record`, `end`."""

    def __init__(self) -> None:
        self.num_records = 0
        self._hash = xxhash.xxh3_64()

    def header(self, header: DumpHeader) -> bytes:
        """The first line."""
        return self._line({"format": FORMAT, "version": VERSION, **asdict(header)})

    def record(self, record: DumpRecord) -> bytes:
        """One record's line."""
        self.num_records += 1
        body = {field.name: getattr(record, field.name) for field in fields(record)}
        body["key"], body["value"] = _text(record.key), _text(record.value)
        body["headers"] = [[name, _text(value)] for name, value in record.headers]
        return self._line(body)

    def end(self) -> bytes:
        """The last line."""
        return self._line({"end": {"records": self.num_records, "xxh3_64": self._hash.hexdigest()}})

    def _line(self, body: dict[str, Any]) -> bytes:
        line = orjson.dumps(body) + b"\n"
        self._hash.update(line)
        return line


class DumpDecoder:
    """Reads the lines of one dump, called `name` in its errors, without their line ends."""

    def __init__(self, name: str) -> None:
        self._name, self._line = name, 0
        self._num_records = 0
        self._hash = xxhash.xxh3_64()
        self.header: DumpHeader | None = None
        self._has_ended = False

    def take(self, line: bytes) -> DumpRecord | None:
        """The record in the next line; None for the first and the last one.

        Raises: DumpError.
        """
        self._line += 1
        if self._has_ended:
            raise self.error("something follows the last line")
        body = self._object(line)
        if self.header is None:
            self.header = self._read_header(body)
            found = None
        elif "end" in body:
            self._check_end(body["end"])
            found = None
        else:
            found = self._read_record(body)
            self._num_records += 1
        self._hash.update(line)
        self._hash.update(b"\n")
        return found

    def finish(self) -> DumpHeader:
        """There are no more lines. Raises: DumpError where there should be."""
        self._line += 1
        if self.header is None:
            raise self.error("the file is empty: it holds no dump")
        if not self._has_ended:
            raise self.error("the file ends here, but its last line is missing: it was cut off")
        return self.header

    def error(self, why: str) -> DumpError:
        """`why`, at the line that was taken last."""
        return DumpError(self._name, self._line, why)

    def after(self, why: str) -> DumpError:
        """`why`, at the line that would be taken next."""
        return DumpError(self._name, self._line + 1, why)

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            body = orjson.loads(line)
        except orjson.JSONDecodeError as problem:
            what = "this is no dump: not JSON" if self.header is None else "not JSON"
            raise self.error(f"{what}: {problem.msg}") from None
        if not isinstance(body, dict):
            raise self.error("a JSON object is needed")
        return body

    def _read_header(self, body: dict[str, Any]) -> DumpHeader:
        if body.get("format") != FORMAT:
            raise self.error(f'this is no dump: its first line lacks "format":"{FORMAT}"')
        if body.get("version") != VERSION:
            raise self.error(f"dumps of version {VERSION} can be read, not {body.get('version')!r}")
        found = self._checked(_Header, body)
        return DumpHeader(**found.model_dump())

    def _read_record(self, body: dict[str, Any]) -> DumpRecord:
        found = self._checked(_Record, body)
        return DumpRecord(**{name: getattr(found, name) for name in _Record.model_fields})

    def _check_end(self, body: Any) -> None:
        end = self._checked(_End, body)
        if end.records != self._num_records:
            text = f"{end.records} records should have come, not {self._num_records}"
            raise self.error(f"{text}: lines are missing or were added")
        if end.xxh3_64 != self._hash.hexdigest():
            raise self.error("the checksum does not match: the file was changed or damaged")
        self._has_ended = True

    def _checked(self, model: type[_M], body: Any) -> _M:
        try:
            return model.model_validate(body)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = path_text(part for part in first["loc"] if not _is_mark(part)) or "it"
            raise self.error(f"{where} {explain(first)}") from None


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as a string, unless its escapes would make it longer than base64; other bytes as
    base64.
    """
    if data is None:
        return None
    base64_chars = 4 * ((len(data) + 2) // 3)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
    if len(orjson.dumps(text)) > base64_chars + _SPARED_CHARS:
        return {"base64": base64.b64encode(data).decode()}
    return text


def _bytes(value: Any) -> Any:
    """The bytes of what `_text` made; anything else as it is, to be refused."""
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, dict) and isinstance(value.get("base64"), str) and len(value) == 1:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("is no base64") from None
    if value is None:
        return None
    raise ValueError('must be a string, {"base64": …} or null')


def _is_mark(part: int | str) -> bool:
    """Whether pydantic, not the line, has put this into a path."""
    return isinstance(part, str) and "[" in part


_Bytes = Annotated[bytes | None, BeforeValidator(_bytes)]
_HeaderName = Annotated[str, Field(max_length=MAX_LINE_BYTES)]


def _pairs(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("must be an array of [name, value] pairs")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise ValueError("must be an array of [name, value] pairs")
    return tuple(tuple(pair) for pair in value)


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Header(_Model):
    topic_prefix: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    num_partitions: int = Field(ge=1, le=1_000_000)
    created: str


class _Record(_Model):
    kind: Kind
    partition: int = Field(ge=0, le=1_000_000)
    offset: int = Field(ge=0, lt=_INT64)
    timestamp_ms: int = Field(ge=-1, lt=_INT64)
    timestamp_type: int = Field(ge=0, le=1)
    key: _Bytes
    value: _Bytes
    headers: Annotated[tuple[tuple[_HeaderName, _Bytes], ...], BeforeValidator(_pairs)]


class _End(_Model):
    records: int = Field(ge=0)
    xxh3_64: str
