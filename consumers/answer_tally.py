"""Answers as the response log shows them: how many are being written, and their tokens. Sans I/O.

An event does not say how many tokens it holds. They are estimated by their characters, and put
right when the answer's last event tells the number.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from headrace.consumers.lag_work import CHARS_PER_TOKEN
from headrace.consumers.log_event import LogEvent
from headrace.schemas.reply import event_text, is_last, usage_of

MAX_OPEN = 10_000
"""Answers remembered at once; of more, the one that was silent longest is forgotten."""

SILENT_S = 120.0
"""Without an event for so long an answer is not being written any more: longer than a failover."""

_PRIOR_TOKENS = 100
_WINDOW_TOKENS = 100_000
"""What characters have to do with tokens is learned from so many of them."""


@dataclass(slots=True)
class _Open:
    seen_s: float
    is_whole: bool
    """Whether its first event was seen, so that `tokens` are all it has."""
    tokens: float = 0.0
    num_chars: int = 0


class AnswerTally:
    """Is shown every event of the live log. Repeated events count once their answer has ended."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()
        self._known_chars: float = _PRIOR_TOKENS * CHARS_PER_TOKEN
        self._known_tokens: float = _PRIOR_TOKENS
        self._estimate = 0.0
        self.num_tokens = 0.0
        """Tokens since the start. Never goes down: an estimate that was too high is waited for."""

    @property
    def num_open(self) -> int:
        """Answers that have begun and not ended."""
        oldest_s = self._clock() - SILENT_S
        while self._open and next(iter(self._open.values())).seen_s < oldest_s:
            self._open.popitem(last=False)
        return len(self._open)

    def add(self, event: LogEvent) -> None:
        """Take an event."""
        name = (event.tenant, event.request_id)
        answer = self._open.pop(name, None)
        if answer is None:
            answer = _Open(self._clock(), is_whole=event.event["sequence_number"] == 0)
        num_chars = len(event_text(event.event))
        tokens = num_chars * self._known_tokens / self._known_chars
        answer.tokens += tokens
        answer.num_chars += num_chars
        if is_last(event.event):
            self._count(tokens + self._correction(answer, event))
            return
        self._count(tokens)
        answer.seen_s = self._clock()
        self._open[name] = answer
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def _count(self, tokens: float) -> None:
        self._estimate += tokens
        self.num_tokens = max(self.num_tokens, self._estimate)

    def _correction(self, answer: _Open, event: LogEvent) -> float:
        length = usage_of(event.event, "completion_tokens")
        if length is None or not answer.is_whole:
            return 0.0
        if answer.num_chars:
            self._learn(answer.num_chars, length)
        return length - answer.tokens

    def _learn(self, num_chars: int, num_tokens: int) -> None:
        self._known_chars += num_chars
        self._known_tokens += num_tokens
        if self._known_tokens > _WINDOW_TOKENS:
            self._known_chars /= 2
            self._known_tokens /= 2
