"""How fast a busy worker is, from the counters of all workers: a moving measure, without clock or
I/O.

Does not know where the counters are read.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GUESS_TOK_S = 200.0
"""Before anything was measured: a small model on two cores with a handful of rows."""

WINDOW_S = 20.0
MIN_BUSY_S = 3.0
"""Less says nothing: prompts are counted when their requests end."""

SETTLE_S = 10.0
"""How soon the measure follows: two thirds of the way in this time."""


@dataclass(frozen=True, slots=True)
class Counters:
    """One worker process's counters and rows, as it was read."""

    generated: float
    """Tokens generated."""
    computed: float
    """Prompt tokens, less those whose KV state was found: they cost next to nothing."""
    rows: float
    """Requests that run now."""
    waiting: float = 0.0
    """Requests that it has read and that wait for a row."""


@dataclass(frozen=True, slots=True)
class _Span:
    end_s: float
    seconds: float
    generated: float
    computed: float
    busy_s: float
    row_s: float


class SpeedMeter:
    """Tokens per second of one worker that has a full batch, and of all together as they are.

    A worker with few rows is slower than it could be. Its speed counts as what a full batch would
    make of it, by the root of the ratio of rows: less than what doubling the rows gained wherever
    it was measured (1.4 times, against 1.3 to 2), and right once the batch is full. All tokens are
    divided by all workers, so cores that they share lower it.
    """

    def __init__(self, full_rows: int, guess_tok_s: float = GUESS_TOK_S) -> None:
        self.speed_tok_s = guess_tok_s
        self.is_measured = False
        self._full_rows = full_rows
        self._before: dict[Any, Counters] = {}
        self._before_s: float | None = None
        self._spans: deque[_Span] = deque()

    @property
    def rate_tok_s(self) -> float:
        """What all workers did together over the last seconds."""
        seconds = sum(span.seconds for span in self._spans)
        return self._num_tokens() / seconds if seconds else 0.0

    def see(self, now_s: float, workers: Mapping[Any, Counters]) -> None:
        """Take a reading of all workers that answer, each under a name of its process's life."""
        before_s, before = self._before_s, self._before
        self._before_s, self._before = now_s, dict(workers)
        if before_s is None or now_s <= before_s:
            return
        pairs = [(before[name], now) for name, now in workers.items() if name in before]
        self._spans.append(_span(now_s, now_s - before_s, pairs))
        while self._spans[0].end_s <= now_s - WINDOW_S:
            self._spans.popleft()
        self._follow(now_s - before_s)

    def _follow(self, step_s: float) -> None:
        busy_s = sum(span.busy_s for span in self._spans)
        if busy_s < MIN_BUSY_S or self._spans[-1].busy_s == 0:
            return
        tokens = self._num_tokens()
        if tokens <= 0:
            return
        rows = max(1.0, sum(span.row_s for span in self._spans) / busy_s)
        full = tokens / busy_s * math.sqrt(max(1.0, self._full_rows / rows))
        share = 1 - math.exp(-step_s / SETTLE_S) if self.is_measured else 1.0
        self.speed_tok_s += (full - self.speed_tok_s) * share
        self.is_measured = True

    def _num_tokens(self) -> float:
        computed = sum(span.computed for span in self._spans)
        return sum(span.generated for span in self._spans) + max(0.0, computed)


def _span(end_s: float, seconds: float, pairs: list[tuple[Counters, Counters]]) -> _Span:
    busy = [((a.rows > 0) + (b.rows > 0)) / 2 for a, b in pairs]
    return _Span(
        end_s,
        seconds,
        generated=sum(max(0.0, b.generated - a.generated) for a, b in pairs),
        computed=sum(b.computed - a.computed for a, b in pairs),
        busy_s=seconds * sum(busy),
        row_s=seconds * sum((a.rows + b.rows) / 2 for a, b in pairs),
    )
