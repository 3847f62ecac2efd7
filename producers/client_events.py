"""What a client's streams hand out: the events of contract §3, typed.

Owns the reading of a gateway's `event` frame. Says nothing of order or repeats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.schemas.errors import RequestError, told_error
from headrace.schemas.event import Timings, Usage
from headrace.schemas.reply import event_text, is_last


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event tells. `cursor` is the place to go on from after it."""

    request_id: str
    session_id: str
    attempt: int
    sequence_number: int
    cursor: str
    worker: str | None = None
    """Which worker wrote it."""

    text: str = ""
    """What it adds to the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(Event):
    """The answer begins anew in a larger attempt: forget its text so far. Rare: a worker died and
    the journal of its answer was lost.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(Event):
    """A piece of the answer. The ids are there if the request asked for them."""

    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Chunk):
    """The last event of an answer; its text is the last piece, or all of it where the request
    asked for no stream.
    """

    finish_reason: str
    usage: Usage
    timings: Timings
    seed: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The last event of an answer that failed."""

    error: RequestError


def read_event(frame: Mapping[str, Any], *, restarted: bool = False) -> Event:
    """The event in a gateway's frame; `restarted`: only that its attempt is a new one."""
    event = frame["event"]
    common = {
        "request_id": event["id"],
        "session_id": event["session_id"],
        "attempt": event["attempt"],
        "sequence_number": event["sequence_number"],
        "cursor": frame["cursor"],
        "worker": frame.get("worker"),
    }
    if restarted:
        return Restarted(**common)
    if event["object"] == "error":
        return Failed(**common, error=told_error(event["error"]))
    choice = event["choices"][0]
    common |= {
        "text": event_text(event),
        "token_ids": _ids(choice.get("token_ids")),
        "prompt_token_ids": _ids(event.get("prompt_token_ids")),
    }
    if not is_last(event):
        return Chunk(**common)
    return Completed(
        **common,
        finish_reason=choice["finish_reason"],
        usage=_usage(event.get("usage") or {}),
        timings=_timings(event.get("timings") or {}),
        seed=event.get("seed") or 0,
        metadata=event.get("metadata") or {},
    )


def _ids(ids: list[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)


def _usage(body: Mapping[str, Any]) -> Usage:
    cached = (body.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(body.get("prompt_tokens") or 0, body.get("completion_tokens") or 0, cached or 0)


def _timings(body: Mapping[str, float]) -> Timings:
    names = ("queue_ms", "prefill_ms", "ttft_ms", "decode_ms")
    return Timings(**{name: body.get(name) or 0.0 for name in names})
