"""A record of the dead-letter topic (contract §1): the original, why it is there, and its retry.

Owns the headers' meaning and the id of a retry. Sans I/O; does not know who reads or writes them.
"""

import re
from dataclasses import dataclass, replace

from headrace.schemas.errors import HeadraceError
from headrace.schemas.headers import Headers, header_text
from headrace.schemas.request import (
    MAX_ID_CHARS,
    REQUEST_ID_HEADER,
    Record,
    decode_request,
    header_request_id,
)

HEADER_PREFIX = "headrace-dlq-"

_NUMBER = re.compile("[0-9]{1,18}")
_PLACE = re.compile("([0-9]{1,9})-([0-9]{1,18})")
_RETRY_MARK = re.compile(r"\.retry-[0-9]+-[0-9]+$")


class NotRetriableError(HeadraceError):
    """A dead letter that was no request of this pipeline: producing it again would be a guess."""


@dataclass(frozen=True, slots=True, order=True)
class DlqPlace:
    """Where a dead letter lies in its topic; written `partition-offset`."""

    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> "DlqPlace | None":
        """The place that `text` names; None where it names none."""
        found = _PLACE.fullmatch(text)
        return cls(int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}"


@dataclass(frozen=True, slots=True)
class Retry:
    """A request record to be produced: a dead letter's own bytes, under an id of its own.

    `partition` is that of the original where no key decides.
    """

    old_id: str
    request_id: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of the dead-letter topic. What a header does not say, or not readably, is None."""

    record: Record

    @property
    def place(self) -> DlqPlace:
        """Where it lies."""
        return DlqPlace(self.record.partition, self.record.offset)

    @property
    def reason(self) -> str | None:
        """The error code of its `failed` event."""
        return self._about("reason")

    @property
    def error(self) -> str | None:
        """What was wrong with it, in words."""
        return self._about("error")

    @property
    def attempts(self) -> int | None:
        """How often it was tried before it was put here."""
        return self._number("attempts")

    @property
    def original(self) -> Record | None:
        """The record as it stood in its topic; None where the headers do not say where."""
        topic, partition = self._about("topic"), self._number("partition")
        offset, timestamp_ms = self._number("offset"), self._number("timestamp")
        if topic is None or partition is None or offset is None:
            return None
        return replace(
            self.record,
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=self.record.timestamp_ms if timestamp_ms is None else timestamp_ms,
            headers=self.own_headers,
        )

    @property
    def own_headers(self) -> Headers:
        """The headers that it came with."""
        return tuple(item for item in self.record.headers if not item[0].startswith(HEADER_PREFIX))

    @property
    def request_id(self) -> str | None:
        """The id under which it was answered; None where neither it nor a header tells."""
        original = self.original
        if original is not None:
            return decode_request(original).request_id
        found = decode_request(self.record)
        return None if found.default_id else found.request_id

    def retry(self, request_topic: str) -> Retry:
        """The same bytes, key and headers, under an id that follows from the place of this letter:
        of two retries of one letter the second is a duplicate.

        The id of a retry that failed again keeps one mark, so it does not grow from round to round.
        Raises: NotRetriableError.
        """
        original = self.original
        if original is None:
            text = f"{self.place} cannot be retried: its headers do not say which topic it is from"
            raise NotRetriableError(text)
        if original.topic != request_topic:
            text = f"{self.place} cannot be retried: it is from topic {original.topic!r}, "
            raise NotRetriableError(f"{text}requests go to {request_topic}")
        if original.key is None and original.value is None:
            text = f"{self.place} cannot be retried: it has neither key nor value"
            raise NotRetriableError(text)
        old_id = decode_request(original).request_id
        is_retry = header_request_id(original.headers) is not None
        first_id = _RETRY_MARK.sub("", old_id) if is_retry else old_id
        mark = f".retry-{self.place}"
        new_id = first_id[: MAX_ID_CHARS - len(mark)] + mark
        kept = [item for item in original.headers if item[0] != REQUEST_ID_HEADER]
        return Retry(
            old_id=old_id,
            request_id=new_id,
            partition=None if original.key else original.partition,
            key=original.key,
            value=original.value,
            headers=[*kept, (REQUEST_ID_HEADER, new_id.encode("utf-8"))],
        )

    def _about(self, name: str) -> str | None:
        return header_text(self.record.headers, HEADER_PREFIX + name)

    def _number(self, name: str) -> int | None:
        text = self._about(name) or ""
        return int(text) if _NUMBER.fullmatch(text) else None
