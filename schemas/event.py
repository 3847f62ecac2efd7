"""The response event (contract §3): how it is built and serialised."""

import math
from dataclasses import dataclass, fields
from typing import Any

import orjson

from headrace.schemas.errors import RequestError
from headrace.schemas.headers import EventType

FINISH_REASONS = ("stop", "length", "tool_calls", "cancelled")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished generation."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds, each ≥ 0.

    `queue_ms` counts from the record's timestamp to the start of prefill; clocks of two machines
    may make it negative, which is shown as 0.
    """

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_ms: float = 0.0

    def body(self) -> dict[str, float]:
        return {field.name: _milliseconds(getattr(self, field.name)) for field in fields(self)}


def _milliseconds(value: float) -> float:
    """≥ 0, to the microsecond; a value that is not finite has no place in JSON."""
    return round(max(0.0, value), 3) if math.isfinite(value) else 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """What only the last event of a generation that did not fail holds."""

    finish_reason: str
    """One of FINISH_REASONS."""
    usage: Usage
    timings: Timings
    seed: int
    metadata: dict[str, str]

    def body(self) -> dict[str, Any]:
        return {
            "usage": self.usage.body(),
            "timings": self.timings.body(),
            "seed": self.seed,
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A serialised response event and what its headers need."""

    kind: EventType
    sequence_number: int
    value: bytes

    @property
    def is_last(self) -> bool:
        return self.kind is not EventType.CHUNK


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Builds the events of one (request, attempt).

    The same input gives the same bytes, on any worker.
    """

    request_id: str
    session_id: str
    attempt: int
    created_s: int
    model: str
    system_fingerprint: str

    def chunk(
        self,
        sequence_number: int,
        text: str,
        *,
        token_ids: list[int] | None = None,
        prompt_token_ids: list[int] | None = None,
        completion: Completion | None = None,
    ) -> Event:
        """A piece of the answer; with `completion` it is the last one."""
        delta: dict[str, Any] = {"content": text}
        if sequence_number == 0:
            delta = {"role": "assistant", "content": text}
        reason = completion.finish_reason if completion else None
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": reason}
        if token_ids is not None:
            choice["token_ids"] = token_ids
        return self._event(
            "chat.completion.chunk", sequence_number, choice, prompt_token_ids, completion
        )

    def whole(
        self,
        text: str,
        completion: Completion,
        *,
        token_ids: list[int] | None = None,
        prompt_token_ids: list[int] | None = None,
    ) -> Event:
        """The only event of a request with `stream: false`."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": completion.finish_reason,
        }
        if token_ids is not None:
            choice["token_ids"] = token_ids
        return self._event("chat.completion", 0, choice, prompt_token_ids, completion)

    def failed(self, sequence_number: int, error: RequestError) -> Event:
        """The last event of a generation that failed."""
        body = {
            "id": self.request_id,
            "object": "error",
            "created": self.created_s,
            "session_id": self.session_id,
            "attempt": self.attempt,
            "sequence_number": sequence_number,
            "error": error.body(),
        }
        return Event(EventType.FAILED, sequence_number, orjson.dumps(body))

    def _event(
        self,
        kind: str,
        sequence_number: int,
        choice: dict[str, Any],
        prompt_token_ids: list[int] | None,
        completion: Completion | None,
    ) -> Event:
        body: dict[str, Any] = {
            "id": self.request_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "session_id": self.session_id,
            "attempt": self.attempt,
            "sequence_number": sequence_number,
            "choices": [choice],
        }
        if prompt_token_ids is not None:
            body["prompt_token_ids"] = prompt_token_ids
        if completion is not None:
            body |= completion.body()
        event_type = EventType.COMPLETED if completion else EventType.CHUNK
        return Event(event_type, sequence_number, orjson.dumps(body))
