"""A recorded load: what of it is asked again, and when."""

import json
from typing import Any

import pytest

from headrace.producers.load_recorded import RecordingError, read_recording
from headrace.schemas.dump import DumpRecord


def record(
    time_ms: int,
    body: dict[str, Any] | bytes | None,
    *,
    key: bytes | None = b"k",
    kind: Any = "request",
) -> DumpRecord:
    value = json.dumps(body).encode() if isinstance(body, dict) else body
    return DumpRecord(kind, 0, 0, time_ms, 0, key, value, ())


def test_requests_are_due_as_they_came() -> None:
    """Over all partitions in the order of time, from 0 on, faster by `speed`."""
    found = read_recording(
        [
            record(5000, {"prompt": "c"}),
            record(1000, {"prompt": "a"}),
            record(3000, {"prompt": "b"}),
        ]
    )
    arrivals = list(found.arrivals(speed=2, run_id="r"))
    assert [(a.due_s, a.session.body(1)["prompt"]) for a in arrivals] == [
        (0.0, "a"),
        (1.0, "b"),
        (2.0, "c"),
    ]


def test_conversations_stay_together_under_names_of_their_own() -> None:
    """A run must not go on with what the recording left in the pipeline."""
    records = [
        record(i, {"prompt": "x"}, key=key) for i, key in enumerate((b"a", b"b", b"a", None))
    ]
    names = [a.session.session_id for a in read_recording(records).arrivals(speed=1, run_id="r")]
    assert names[0] == names[2]
    assert len(set(names)) == 3
    assert all(name.startswith("r-") for name in names)


def test_names_of_the_recorded_pipeline_are_left_out() -> None:
    """What is asked, and how, stays."""
    body = {
        "prompt": "x",
        "request_id": "1",
        "session_id": "k",
        "tenant": "t",
        "turn": 3,
        "top_k": 2,
    }
    (arrival,) = read_recording([record(0, body)]).arrivals(speed=1, run_id="r")
    assert arrival.session.body(1) == {"prompt": "x", "top_k": 2}


def test_a_request_without_a_session_gets_none_to_go_on_with() -> None:
    """Its default context was `replace`; with our key it would be another."""
    (arrival,) = read_recording([record(0, {"prompt": "x"}, key=None)]).arrivals(
        speed=1, run_id="r"
    )
    assert arrival.session.body(1) == {"prompt": "x", "context": "replace"}


def test_what_is_no_request_is_counted() -> None:
    """Tombstones, broken ones; other topics' records are none of ours."""
    found = read_recording(
        [
            record(0, {"prompt": "x"}),
            record(1, None),
            record(2, b"{"),
            record(3, {"max_tokens": 0}),
            record(4, {"object": "x"}, kind="response"),
        ]
    )
    assert (len(found.requests), found.num_skipped) == (1, 3)


def test_a_dump_without_requests_is_no_load() -> None:
    """Said before anything is sent."""
    with pytest.raises(RecordingError, match="holds no requests"):
        read_recording([record(0, None)])
