"""Which turn of a load is due when: arrivals, and the next turns of sessions that were answered.

Sans I/O: time comes in. A turn's due time never depends on when anything was sent, so latency that
is counted from it leaves no wait out.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.producers.load_arrivals import Arrival
from headrace.producers.load_session import Session


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a load. `number` counts from 1; `session_due_s`: of the session's first.

    `measured`: due after the warm-up.
    """

    due_s: float
    number: int
    session: Session
    session_due_s: float
    measured: bool

    @property
    def is_last(self) -> bool:
        """Whether its session asks nothing more."""
        return self.number >= self.session.num_turns

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        return self.session.body(self.number)


class LoadSchedule:
    """Hands out turns in the order of their due times.

    It closes at `end_s`, after `max_requests` measured turns, or when `close` is called; what would
    be due later is not handed out.
    """

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        *,
        warm_up_s: float = 0.0,
        end_s: float | None = None,
        max_requests: int | None = None,
    ) -> None:
        self._arrivals = arrivals
        self._warm_up_s, self._end_s, self._max_requests = warm_up_s, end_s, max_requests
        self._heap: list[tuple[float, int, Turn]] = []
        self._num_pushed = self._num_measured = 0
        self._num_open = 0
        """Turns that were handed out, wait for an answer, and have another turn after them."""
        self._is_drawn_out = self.closed = False
        self.num_sessions = self.num_complete = self.num_given_up = 0
        self._draw()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be handed out."""
        return self.closed or (self._is_drawn_out and not self._heap and not self._num_open)

    @property
    def num_cut(self) -> int:
        """Sessions that began and are neither complete nor given up."""
        return self.num_sessions - self.num_complete - self.num_given_up

    @property
    def next_due_s(self) -> float | None:
        """When the next turn is due; None: not known before an answer comes, or never."""
        return self._heap[0][0] if self._heap and not self.closed else None

    @property
    def next_wake_s(self) -> float | None:
        """When `take` is to be asked next: for a turn, or to close; None: after an answer."""
        due_s = self.next_due_s
        if self._end_s is None or (due_s is not None and due_s < self._end_s):
            return due_s
        return self._end_s

    def take(self, now_s: float) -> Turn | None:
        """The next turn that is due at `now_s`."""
        due_s = self.next_due_s
        if self._end_s is not None and (now_s if due_s is None else due_s) >= self._end_s:
            if now_s >= self._end_s:
                self.close()
            return None
        if due_s is None or due_s > now_s:
            return None
        turn = heapq.heappop(self._heap)[2]
        if turn.number == 1:
            self.num_sessions += 1
            self._draw()
        if turn.measured:
            self._num_measured += 1
            if self._num_measured == self._max_requests:
                self.close()
        self._num_open += not turn.is_last
        return turn

    def answered(self, turn: Turn, now_s: float) -> None:
        """`turn` was answered at `now_s`: its session thinks, then goes on."""
        if turn.is_last:
            self.num_complete += 1
            return
        self._num_open -= 1
        number = turn.number + 1
        self._push(now_s + turn.session.think_s(number), number, turn.session, turn.session_due_s)

    def gave_up(self, turn: Turn) -> None:
        """`turn` was not answered as it should: its session ends here."""
        self._num_open -= not turn.is_last
        self.num_given_up += 1

    def close(self) -> None:
        """Hand nothing more out."""
        self.closed = True

    def _draw(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._is_drawn_out = True
        else:
            self._push(arrival.due_s, 1, arrival.session, arrival.due_s)

    def _push(self, due_s: float, number: int, session: Session, session_due_s: float) -> None:
        self._num_pushed += 1
        turn = Turn(due_s, number, session, session_due_s, due_s >= self._warm_up_s)
        heapq.heappush(self._heap, (due_s, self._num_pushed, turn))
