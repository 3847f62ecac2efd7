"""All that a run has measured so far: outcomes, latencies, and what happened in each second.

Sans I/O; bounded, however long the run. What came of requests that were due in the warm-up counts
only where it was wrong.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from headrace.deploy.bench.exchange import Exchange, Outcome
from headrace.deploy.bench.samples import Samples

RECENT_S = 10.0
MAX_RECENT = 100_000
MAX_TURNS_APART = 3
"""Turns from this one on are one row of the report."""


@dataclass(slots=True)
class Second:
    """What happened in one second of the run."""

    num_sent: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_running: int = 0
    """At its end."""


@dataclass(slots=True)
class Tokens:
    """Of the measured requests."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(slots=True)
class Recorder:
    """Takes a run's exchanges as they begin and end. Times are seconds since its start."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Code → how many, of failed, unsent and wrong requests."""
    wrong: list[str] = field(default_factory=list)
    """Ids of wrong answers, of those in the warm-up too; the first 100."""
    num_wrong: int = 0
    num_warm_up: int = 0
    num_repeats: int = 0
    num_restarts: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    num_running: int = 0
    num_sent: int = 0
    """With those of the warm-up, as `num_ended`."""
    num_ended: int = 0
    first: Samples = field(default_factory=lambda: Samples(3))
    """Due time, time to first token, number of the turn."""
    whole: Samples = field(default_factory=lambda: Samples(3))
    """Due time, time to the last event, number of the turn."""
    token: Samples = field(default_factory=Samples)
    pause: Samples = field(default_factory=Samples)
    session: Samples = field(default_factory=Samples)
    lag: Samples = field(default_factory=Samples)
    seconds: dict[int, Second] = field(default_factory=dict)
    _recent: deque[tuple[float, float]] = field(
        default_factory=lambda: deque[tuple[float, float]](maxlen=MAX_RECENT)
    )

    def sent(self, exchange: Exchange, now_s: float) -> None:
        """A request goes out."""
        self.num_sent += 1
        self.num_running += 1
        self._second(now_s).num_sent += 1
        if exchange.turn.measured and exchange.lag_s is not None:
            self.lag.add(exchange.lag_s)

    def tokens_came(self, exchange: Exchange, num_tokens: int, now_s: float) -> None:
        """New tokens of an answer; also notes the first text, for the live figures."""
        self._second(now_s).num_tokens += num_tokens
        if exchange.first_s == now_s:
            self._recent.append((now_s, now_s - exchange.due_s))

    def ended(self, exchange: Exchange, now_s: float) -> None:
        """An exchange has an outcome; `now_s` is when that was."""
        if exchange.outcome is None:
            raise ValueError("the exchange is open")
        is_good = exchange.outcome in (Outcome.FINISHED, Outcome.CANCELLED)
        if exchange.sent_s is not None:
            self.num_running -= 1
        self.num_ended += 1
        second = self._second(now_s)
        second.num_finished += exchange.outcome is Outcome.FINISHED
        second.num_failed += not is_good
        second.num_prompt_tokens += exchange.prompt_tokens
        self.num_repeats += exchange.num_repeats
        self.num_restarts += exchange.num_restarts
        if exchange.outcome is Outcome.WRONG:
            self._note_wrong(exchange)
        if not exchange.turn.measured:
            self.num_warm_up += 1
            return
        self.outcomes[exchange.outcome] += 1
        if exchange.code is not None:
            self.errors[exchange.code] += 1
        self._measure(exchange, now_s)

    def turned_wrong(self, exchange: Exchange, before: Outcome) -> None:
        """An answer that had ended with outcome `before` turned out to be wrong."""
        self._note_wrong(exchange)
        if exchange.turn.measured:
            self.outcomes[before] -= 1
            self.outcomes[Outcome.WRONG] += 1
            self.errors[exchange.code or "wrong"] += 1

    def tick(self, now_s: float) -> None:
        """A second is over: note what runs."""
        self._second(now_s).num_running = self.num_running

    def recent_first_token_s(self, now_s: float) -> list[float]:
        """Times to first token of the last 10 s."""
        while self._recent and self._recent[0][0] < now_s - RECENT_S:
            self._recent.popleft()
        return [value for _, value in self._recent]

    @property
    def num_errors(self) -> int:
        """Measured requests that failed, were not sent, or whose answer is wrong."""
        bad = (Outcome.FAILED, Outcome.NOT_SENT, Outcome.WRONG)
        return sum(self.outcomes[outcome] for outcome in bad)

    def _measure(self, exchange: Exchange, now_s: float) -> None:
        """NOTE: one that is unfinished counts with its age, the least that its latency can be; to
        leave it out would make an overloaded server look fast.
        """
        outcome, turn = exchange.outcome, exchange.turn
        row = (exchange.due_s, turn.number)
        if outcome is Outcome.UNFINISHED:
            exchange.first_s = exchange.first_s or now_s
            exchange.ended_s = now_s
        elif outcome is not Outcome.FINISHED:
            return
        if exchange.first_s is not None:
            self.first.add(row[0], exchange.first_s - exchange.due_s, row[1])
        if exchange.ended_s is not None:
            self.whole.add(row[0], exchange.ended_s - exchange.due_s, row[1])
        if exchange.num_events > 1:
            self.pause.add(exchange.longest_pause_s)
        for gap_s, num_tokens in exchange.token_gaps:
            for _ in range(num_tokens):
                self.token.add(gap_s)
        self._count_tokens(exchange)
        if outcome is Outcome.FINISHED and turn.is_last and exchange.ended_s is not None:
            self.session.add(exchange.ended_s - turn.session_due_s)

    def _count_tokens(self, exchange: Exchange) -> None:
        self.tokens.prompt += exchange.prompt_tokens
        self.tokens.cached += exchange.cached_tokens
        self.tokens.output += exchange.num_tokens

    def _note_wrong(self, exchange: Exchange) -> None:
        self.num_wrong += 1
        if len(self.wrong) < 100:
            self.wrong.append(f"{exchange.request_id}: {exchange.code}")

    def _second(self, now_s: float) -> Second:
        return self.seconds.setdefault(max(0, math.floor(now_s)), Second())
