"""One request of a load and the answer to it: when what came, and whether it was right.

Sans I/O: events and times come in. Latency counts from when the request was due.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson
import xxhash

from headrace.producers.load_schedule import Turn
from headrace.schemas.reply import ReplyReader, Seen, event_text

_MAY_DIFFER = ("created", "timings")
"""Of an event that is repeated (contract §3), beside `usage.prompt_tokens_details`."""


class Outcome(StrEnum):
    """What became of a request."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NOT_SENT = "not_sent"
    UNFINISHED = "unfinished"
    WRONG = "wrong"
    """Events were lost, or one came twice with two contents."""


@dataclass(slots=True)
class Exchange:
    """A request and what its reader has. Times are seconds since the start of the run."""

    turn: Turn
    request_id: str
    sent_s: float | None = None
    first_s: float | None = None
    """When the first text came."""
    last_s: float | None = None
    """When the newest event came."""
    ended_s: float | None = None
    outcome: Outcome | None = None
    code: str | None = None
    """Of the error."""
    num_events: int = 0
    num_repeats: int = 0
    num_restarts: int = 0
    num_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    longest_pause_s: float = 0.0
    token_gaps: list[tuple[float, int]] = field(default_factory=list)
    """For each event after the first text: the time before it per token of it, and the tokens."""
    _reader: ReplyReader = field(default_factory=ReplyReader)
    _contents: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def due_s(self) -> float:
        """When it was to be sent."""
        return self.turn.due_s

    @property
    def lag_s(self) -> float | None:
        """How late it was sent; None if it was not."""
        return None if self.sent_s is None else max(0.0, self.sent_s - self.due_s)

    @property
    def is_open(self) -> bool:
        """Whether its answer is still to come."""
        return self.outcome is None

    def take(self, event: dict[str, Any], now_s: float) -> int:
        """Note an event of the answer, repeats too; returns how many new tokens it has.

        Also to be called after the end: a late repeat with another content makes the answer wrong.
        """
        if not self._agrees(event):
            self.end(Outcome.WRONG, now_s, "two_contents")
            return 0
        seen = self._reader.see(event)
        if seen is Seen.GAP:
            self.end(Outcome.WRONG, now_s, "events_lost")
        if seen in (Seen.GAP, Seen.OLD):
            self.num_repeats += seen is Seen.OLD
            return 0
        num_new = self._count(event, restarted=seen is Seen.RESTART)
        self._time(event, num_new, now_s)
        if self._reader.finished:
            self._conclude(event, now_s)
        return num_new

    def end(self, outcome: Outcome, now_s: float, code: str | None = None) -> None:
        """Nothing more is waited for. What was right may still turn out to be wrong."""
        if self.outcome is None or outcome is Outcome.WRONG:
            self.outcome, self.code = outcome, code
            self.ended_s = now_s if self.ended_s is None else self.ended_s

    def _agrees(self, event: dict[str, Any]) -> bool:
        """Whether an event of this number, if there was one, said the same."""
        stable = {name: value for name, value in event.items() if name not in _MAY_DIFFER}
        if usage := stable.get("usage"):
            stable["usage"] = {k: v for k, v in usage.items() if k != "prompt_tokens_details"}
        content = xxhash.xxh3_64_intdigest(orjson.dumps(stable, option=orjson.OPT_SORT_KEYS))
        place = (event["attempt"], event["sequence_number"])
        return self._contents.setdefault(place, content) == content

    def _count(self, event: dict[str, Any], *, restarted: bool) -> int:
        """Count the event's tokens; a larger attempt says those again that were there before."""
        self.num_events += 1
        before = self.num_tokens
        if restarted:
            self.num_restarts += 1
            self.num_tokens = 0
        if event["object"] != "error":
            ids = event["choices"][0].get("token_ids")
            self.num_tokens += bool(event_text(event)) if ids is None else len(ids)
        return max(0, self.num_tokens - before)

    def _time(self, event: dict[str, Any], num_new: int, now_s: float) -> None:
        if self.first_s is not None and self.last_s is not None:
            gap_s = now_s - self.last_s
            self.longest_pause_s = max(self.longest_pause_s, gap_s)
            if num_new:
                self.token_gaps.append((gap_s / num_new, num_new))
        elif event_text(event):
            self.first_s = now_s
        self.last_s = now_s

    def _conclude(self, event: dict[str, Any], now_s: float) -> None:
        if event["object"] == "error":
            self.end(Outcome.FAILED, now_s, str(event["error"].get("code")))
            return
        choice, usage = event["choices"][0], event.get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens", 0)
        told = usage.get("completion_tokens")
        if told is not None and "token_ids" in choice and told != self.num_tokens:
            self.end(Outcome.WRONG, now_s, "tokens_lost")
        is_cancelled = choice["finish_reason"] == "cancelled"
        self.end(Outcome.CANCELLED if is_cancelled else Outcome.FINISHED, now_s)
