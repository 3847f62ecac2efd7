"""What a replayed record says of its original, and what a worker makes of it."""

import json

import pytest

from headrace.schemas.headers import Headers
from headrace.schemas.replay import Origin, replay_headers, replayed_origin
from headrace.schemas.request import DecodedRequest, Record, decode_request

ORIGIN = Origin("head-race.requests", 3, 14, 1_700_000_000_123)
ADDED = replay_headers("r1", ORIGIN)


def decode(headers: Headers, value: bytes = b'{"prompt":"x"}') -> DecodedRequest:
    return decode_request(Record("other.requests", 1, 2, 99, b"s", value, headers))


def test_headers_say_where_the_original_lies() -> None:
    """The names are part of the public interface."""
    assert dict(ADDED) == {
        "headrace-replay-id": b"r1",
        "headrace-replay-source": b"head-race.requests-3-14",
        "headrace-replay-timestamp": b"1700000000123",
    }


def test_what_is_written_can_be_read() -> None:
    """Also where the topic's name holds hyphens, and of a record that had no time."""
    assert replayed_origin(ADDED, 5) == ORIGIN
    timeless = Origin("t", 0, 0, -1)
    assert replayed_origin(replay_headers("r1", timeless), 5) == timeless


def test_a_replayed_record_has_the_id_of_its_original() -> None:
    """And the place from which its seed comes; the record itself lies where it lies."""
    found = decode(ADDED)
    assert (found.request_id, found.origin) == ("head-race.requests-3-14", ORIGIN)
    assert (found.record.topic, found.record.offset) == ("other.requests", 2)


def test_a_replayed_record_is_answered_with_token_ids() -> None:
    """They are what is compared."""
    assert decode(ADDED).wants_token_ids
    assert not decode(()).wants_token_ids
    assert decode((), json.dumps({"prompt": "x", "return_token_ids": True}).encode())
    assert not decode(ADDED, b"{").wants_token_ids


@pytest.mark.parametrize("source", [b"", b"x", b"t-1", b"t-1-x", b"-1-2", b"\xff", b"a b-1-2"])
def test_a_broken_source_is_ignored(source: bytes) -> None:
    """The record is one like any other, then."""
    found = decode([ADDED[0], ("headrace-replay-source", source), ADDED[2]])
    assert found.origin == Origin("other.requests", 1, 2, 99)
    assert not found.for_comparison


def test_a_broken_time_leaves_the_place() -> None:
    """The record's own time stands in."""
    found = decode([ADDED[1], ("headrace-replay-timestamp", b"soon")])
    assert found.origin == Origin("head-race.requests", 3, 14, 99)


def test_the_newest_of_several_counts() -> None:
    """They are added behind the original's headers."""
    newer = Origin("t", 0, 1, 2)
    assert decode([*ADDED, *replay_headers("r2", newer)]).origin == newer
