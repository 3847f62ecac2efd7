"""CloudEvents and trace context as Kafka headers."""

import pytest

from headrace.schemas.headers import (
    EventType,
    Headers,
    cloud_event_headers,
    header_text,
    trace_headers,
)

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_cloud_event_headers_can_be_read_back() -> None:
    """Every attribute of binary mode, also where ids are no ASCII."""
    headers = cloud_event_headers(
        EventType.CHUNK, event_id="r:7:0", source="/w/1", subject="é 😀", time_s=1796000000.5
    )
    expected = {
        "ce_specversion": "1.0",
        "ce_id": "r:7:0",
        "ce_type": "headrace.generation.chunk.v1",
        "ce_source": "/w/1",
        "ce_subject": "é 😀",
        "ce_time": "2026-11-30T00:53:20.500000Z",
        "content-type": "application/json",
    }
    assert expected == {name: header_text(headers, name) for name in expected}
    assert len(expected) == len(headers)


@pytest.mark.parametrize("broken", [None, b"", b"\xff", b"\xed\xa0\x80"])
def test_a_broken_value_is_ignored(broken: bytes | None) -> None:
    """Alone it is absent; after a good one the good one stands."""
    assert header_text([("h", broken)], "h") is None
    assert header_text([("h", b"good"), ("h", broken)], "h") == "good"


def test_the_last_value_wins() -> None:
    """Kafka allows a name several times; names differ by case."""
    headers: Headers = [("h", b"a"), ("h", b"b"), ("H", b"c"), ("i", b"d")]
    assert header_text(headers, "h") == "b"
    assert header_text((), "h") is None


def test_trace_context_is_handed_on() -> None:
    """The three W3C headers, byte for byte, and nothing else."""
    trace = [("traceparent", TRACEPARENT), ("tracestate", b"a=1"), ("baggage", b"k=v")]
    assert trace == trace_headers([*trace, ("ce_id", b"x"), ("traceparent", None)])
    assert trace_headers([("traceparent", b"\xff")]) == []


def test_trace_context_beyond_its_own_limit_is_ignored() -> None:
    """It would be copied into every event of the answer."""
    headers = [("traceparent", b"00-ab-cd-01"), ("baggage", b"x" * 8193)]
    assert trace_headers(headers) == [("traceparent", b"00-ab-cd-01")]
