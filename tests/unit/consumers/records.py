"""Records of the responses topic as a consumer gives them, without a Kafka."""

from dataclasses import dataclass

from tests.unit.consumers.doubles import completion, writer

LAST_NUMBER = 3


@dataclass(frozen=True)
class LogRecord:
    """What `decode_event` and the live reader look at of aiokafka's records."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int = 0


def event_record(
    session: str,
    request: str,
    number: int,
    *,
    partition: int,
    offset: int,
    tenant: str = "default",
    text: str = "x",
) -> LogRecord:
    """An event; the one with LAST_NUMBER completes its answer."""
    ends = completion() if number == LAST_NUMBER else None
    value = writer(request, session).chunk(number, text, completion=ends).value
    headers = (("headrace-tenant", tenant.encode()),)
    return LogRecord(partition, offset, session.encode(), value, headers)
