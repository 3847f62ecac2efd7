"""The response events (contract §3)."""

import json
import math
from typing import Any

import pytest

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Completion, Event, EventWriter, Timings, Usage
from headrace.schemas.headers import EventType

DONE = Completion("stop", Usage(5, 3, 2), Timings(1.23456, -4.0, 2, 3), -(2**63), {"k": "v"})
HEAD = {
    "id": "r",
    "created": 1796000000,
    "model": "m",
    "system_fingerprint": "f",
    "session_id": "s",
    "attempt": 1796000000123,
}


def writer() -> EventWriter:
    return EventWriter("r", "s", 1796000000123, 1796000000, "m", "f")


def body(event: Event) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(event.value, parse_constant=refuse)
    return found


def test_the_first_chunk_names_the_role() -> None:
    """As the contract's example has it."""
    event = writer().chunk(0, "He")
    choice = {"index": 0, "delta": {"role": "assistant", "content": "He"}, "finish_reason": None}
    expected = HEAD | {
        "object": "chat.completion.chunk",
        "sequence_number": 0,
        "choices": [choice],
    }
    assert expected == body(event)
    assert (event.kind, event.is_last, event.sequence_number) == (EventType.CHUNK, False, 0)


def test_a_later_chunk_has_text_only() -> None:
    """The role is said once."""
    assert body(writer().chunk(3, "é😀"))["choices"][0]["delta"] == {"content": "é😀"}


def test_the_last_chunk_has_what_only_the_last_has() -> None:
    """Usage, timings, seed and metadata in OpenAI's names."""
    event = writer().chunk(2, "", completion=DONE)
    found = body(event)
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    timings = {"queue_ms": 1.235, "prefill_ms": 0.0, "ttft_ms": 2.0, "decode_ms": 3.0}
    assert found["choices"][0]["finish_reason"] == "stop"
    assert (usage, timings) == (found["usage"], found["timings"])
    assert (found["seed"], found["metadata"]) == (-(2**63), {"k": "v"})
    assert (event.kind, event.is_last) == (EventType.COMPLETED, True)


def test_the_whole_answer_is_one_chat_completion() -> None:
    """`stream: false`: a message, not a delta."""
    event = writer().whole("Hello", DONE, token_ids=[1, 2], prompt_token_ids=[3])
    found = body(event)
    message = {"role": "assistant", "content": "Hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1, 2]}
    assert ("chat.completion", 0, [choice]) == (
        found["object"],
        found["sequence_number"],
        found["choices"],
    )
    assert found["prompt_token_ids"] == [3]
    assert (event.kind, event.is_last) == (EventType.COMPLETED, True)


def test_token_ids_stand_where_they_were_asked_for() -> None:
    """An empty list is a list; None is no field."""
    found = body(writer().chunk(0, "", token_ids=[], prompt_token_ids=[1]))
    assert (found["choices"][0]["token_ids"], found["prompt_token_ids"]) == ([], [1])
    found = body(writer().chunk(0, ""))
    assert "token_ids" not in found["choices"][0]
    assert "prompt_token_ids" not in found


@pytest.mark.parametrize(
    ("code", "kind"),
    [(ErrorCode.INVALID_VALUE, "invalid_request_error"), (ErrorCode.OVERLOADED, "server_error")],
)
def test_a_failed_event(code: ErrorCode, kind: str) -> None:
    """OpenAI's error object under our names."""
    event = writer().failed(4, RequestError(code, "no", "a.b"))
    found = body(event)
    assert found["error"] == {"type": kind, "code": code.value, "message": "no", "param": "a.b"}
    assert (found["object"], found["sequence_number"], found["id"]) == ("error", 4, "r")
    assert (event.kind, event.is_last) == (EventType.FAILED, True)


def test_the_same_input_gives_the_same_bytes() -> None:
    """Whichever worker writes it: a reader drops what it has seen."""
    expired = RequestError(ErrorCode.EXPIRED, "late")

    def written() -> list[bytes]:
        events = (
            writer().chunk(1, "a", completion=DONE),
            writer().whole("a", DONE),
            writer().failed(1, expired),
        )
        return [event.value for event in events]

    assert written() == written()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -1.0])
def test_a_time_that_is_none_is_zero(value: float) -> None:
    """Regression: an infinite time was written as null."""
    assert Timings(queue_ms=value).body()["queue_ms"] == 0.0


def test_an_error_that_quotes_broken_text_can_be_written() -> None:
    """Regression: half a surrogate pair in a message made the failed event raise."""
    event = writer().failed(0, RequestError(ErrorCode.INTERNAL_ERROR, "file \udcff", "\ud800"))
    error = body(event)["error"]
    assert (error["message"], error["param"]) == ("file ?", "?")
