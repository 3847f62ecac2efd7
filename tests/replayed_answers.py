"""Answers and requests as a replay compares them, made of a few words."""

from typing import Any

import orjson

from headrace.deploy.replaying.answer import Answer
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Completion, Event, EventWriter, Timings, Usage
from headrace.schemas.request import DecodedRequest, Record, decode_request


def request(*, key: bytes | None = None, **body: Any) -> DecodedRequest:
    value = orjson.dumps({"prompt": "x", "request_id": "r"} | body)
    return decode_request(Record("t.requests", 0, 1, 2, key, value, ()))


def writer(fingerprint: str = "f", attempt: int = 1) -> EventWriter:
    return EventWriter("r", "s", attempt, 0, "m", fingerprint)


def of_events(*events: Event) -> Answer:
    answer = Answer()
    for event in events:
        answer.see(orjson.loads(event.value))
    return answer


def texts_of(ids: Any) -> list[str]:
    """Token 1 is `a`, 2 is `b` …; 0 ends a turn and has no text."""
    return [chr(96 + token) if token else "" for token in ids]


def answer(
    ids: list[int],
    *,
    reason: str = "stop",
    with_ids: bool = True,
    prompt_tokens: int = 3,
    fingerprint: str = "f",
    seed: int = 5,
) -> Answer:
    """A completed answer in two chunks; its text is that of its tokens."""
    half = len(ids) // 2
    usage = Usage(prompt_tokens, len(ids))
    done = Completion(reason, usage, Timings(1, 2, 3, 4), seed, {})
    prompt_ids = [9] * prompt_tokens if with_ids else None
    one, other = (ids[:half], ids[half:]) if with_ids else (None, None)
    made = writer(fingerprint)
    return of_events(
        made.chunk(0, "".join(texts_of(ids[:half])), token_ids=one, prompt_token_ids=prompt_ids),
        made.chunk(1, "".join(texts_of(ids[half:])), completion=done, token_ids=other),
    )


def failed(code: ErrorCode) -> Answer:
    return of_events(writer().failed(0, RequestError(code, "why")))
