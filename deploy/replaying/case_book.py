"""What a dump asks, and what was answered then.

Owns the reading of a dump for a comparison; keeps names, settings of the sampling and answers, not
the prompts. Does not compare.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.consumers.log_event import decode_event
from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.dump_file import read_dump
from headrace.schemas.dump import DumpHeader, DumpRecord
from headrace.schemas.request import DecodedRequest, Record, decode_request
from headrace.schemas.topics import Topics

Name = tuple[str, str]
"""Tenant and request id."""


@dataclass(slots=True)
class CaseBook:
    """The requests of a recording in their order, and their recorded answers."""

    requests: dict[Name, DecodedRequest] = field(default_factory=dict)
    recorded: dict[Name, Answer] = field(default_factory=dict)
    num_duplicates: int = 0
    """Records with an id that stands before: no worker answers them."""

    @classmethod
    def read(cls, path: Path, header: DumpHeader) -> "CaseBook":
        """Raises: DumpError, OSError."""
        book = cls()
        for record in read_dump(path):
            if record.kind == "request":
                book._take_request(original_of(record, header))
            elif record.kind == "response":
                book._take_event(record)
        for name in book.recorded.keys() - book.requests.keys():
            del book.recorded[name]
        return book

    def _take_request(self, record: Record) -> None:
        if record.value is None:
            return
        asked = _without_prompt(decode_request(record))
        name = (asked.tenant, asked.request_id)
        if name in self.requests:
            self.num_duplicates += 1
        else:
            self.requests[name] = asked

    def _take_event(self, record: DumpRecord) -> None:
        found = decode_event(record)
        if found is not None:
            name = (found.tenant, found.request_id)
            self.recorded.setdefault(name, Answer()).see(found.event)


def originals(path: Path, header: DumpHeader) -> Iterator[Record]:
    """The request records of a dump, in their order. Raises: DumpError, OSError."""
    for record in read_dump(path):
        if record.kind == "request":
            yield original_of(record, header)


def original_of(record: DumpRecord, header: DumpHeader) -> Record:
    """A request record at its place in the topic that it was dumped from."""
    return Record(
        topic=Topics(header.topic_prefix).requests,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def _without_prompt(asked: DecodedRequest) -> DecodedRequest:
    """Prompts may be a megabyte each, and nothing in a comparison needs them."""
    request = asked.request
    if request is not None:
        request = request.model_copy(update={"messages": None, "prompt": None})
    return replace(asked, request=request, record=replace(asked.record, value=b""))
