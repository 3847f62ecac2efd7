"""Executable specification of one request's delivery: explores every interleaving of two workers
and the faults below.

Checked: an event (attempt, sequence_number) never has two contents, an attempt never two seeds; a
reader that follows the largest attempt sees no gap and ends with the whole text; when nothing can
move any more, the request is committed. Not covered: more than one request, timing, the session
record, writes that arrive late, Kafka losing acknowledged records.

The protocol, one action = one atomic step:

  own      a partition is assigned: fencing token = max(clock, stored token + 1), stored (Redis
           away: the clock alone)
  lease    where Redis cannot decide (journal gone, Redis away) a worker acts only if the group
           answered its heartbeat within the session timeout: a paused worker that wakes up finds
           its lease over before it can act
  claim    journal absent: create it, attempt = token. Present with a smaller or equal token: take
           it over; keep its attempt, or, if nothing began under it, attempt = token. Present with a
           larger token: fenced; an owner asks for a new token, anybody else stops. Redis away:
           wait, unless the record came after this assignment, so that nobody can have started it:
           then a new token, and go on unjournaled.
  step     one more token in memory, a function of seed and position. The seed is settled with the
           first one; no two workers settle the same
  flush    journaled: append the tokens since the last flush as one chunk, and the seed, unless a
           larger token stands there. Journal gone: new token, new attempt, all text so far as one
           chunk. Redis away: hold the text back.
           unjournaled: publish without asking while Redis is away; when it is back, write the
           journal, unless a larger token stands there. Until that is answered it may stand or not:
           nothing more is published (adopting).
  publish  the next chunk that is journaled (or unjournaled by permission) goes to the response log
  confirm  all published, last event included: the journal must still be mine, else the reader may
           already follow a larger attempt. Journal gone: new attempt; another's: fenced; Redis
           away: a journaled stream waits, one without a journal goes on.
  commit   after confirm; the group accepts it only from the partition's owner

Faults: a worker crashes, or is paused; Redis loses everything, or is away; a write is carried out
and its answer lost. Run: python -m tests.spec.delivery_model [crashes pauses losses outages
unanswered] [--bug NAME]; "2 1 0 2 1" explores 3.6 million states.
"""

import sys
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

NUM_TOKENS = 2
"""Of the whole text."""


class Bug(Enum):
    """Rules to leave out, to see that they are needed."""

    NO_FENCE = "no fence"
    NO_LEASE = "no lease"
    PUBLISH_BEFORE_JOURNAL = "publish before journal"
    COMMIT_BEFORE_PUBLISH = "commit before publish"
    OLD_ATTEMPT = "recreate journal with the old attempt"
    PUBLISH_WHILE_AWAY = "publish while journal is away"
    NOT_FRESH = "unjournaled although it may have been started"
    EMPTY_ATTEMPT = "keep the attempt of a journal in which nothing began"
    PUBLISH_WHILE_ADOPTING = "publish while it is not known whether the journal stands"


class Journal(NamedTuple):
    attempt: int
    token: int
    bounds: tuple[int, ...]
    """End of each chunk; finished when the last one is NUM_TOKENS."""
    seed: int | None


class Worker(NamedTuple):
    up: str = "up"
    generation: int = 0
    """The last assignment that it knows of; 0: none."""
    token: int = 0
    doing: str = "idle"
    attempt: int = 0
    made: int = 0
    bounds: tuple[int, ...] = ()
    sent: int = 0
    """Chunks published."""
    standing: str = "journaled"
    is_fresh: bool = False
    """The request came after this assignment."""
    seed: int | None = None

    @property
    def flushed(self) -> int:
        return self.bounds[-1] if self.bounds else 0

    @property
    def bounds_with_the_rest(self) -> tuple[int, ...]:
        return (*self.bounds, self.made) if self.made > self.flushed else self.bounds


class Budget(NamedTuple):
    """How many faults of each kind are still to come."""

    crashes: int = 1
    pauses: int = 1
    losses: int = 1
    outages: int = 1
    unanswered: int = 1


class Event(NamedTuple):
    attempt: int
    number: int
    begin: int
    end: int
    seed: int | None

    @property
    def is_last(self) -> bool:
        return self.end == NUM_TOKENS


class State(NamedTuple):
    budget: Budget
    clock: int = 1
    redis: bool = True
    stored_token: int = 0
    journal: Journal | None = None
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    owner: int = 0
    generation: int = 1
    arrived: bool = False
    committed: bool = False
    log: tuple[Event, ...] = ()
    """Each event once: equal situations are explored once."""

    def put(self, i: int, worker: Worker) -> "State":
        first, second = self.workers
        return self._replace(workers=(worker, second) if i == 0 else (first, worker))

    def owns(self, i: int) -> bool:
        return self.owner == i and self.workers[i].generation == self.generation

    def spend(self, kind: str) -> "State":
        left = getattr(self.budget, kind) - 1
        return self._replace(budget=self.budget._replace(**{kind: left}))


class ViolationError(Exception):
    """The promise is broken; the text says how."""


Moves = Iterator[tuple[str, State]]


class Model:
    """The protocol, but for one planted `bug`."""

    def __init__(self, bug: Bug | None = None) -> None:
        self._bug = bug

    def _may_be_created(self, s: State, i: int) -> bool:
        """lease"""
        return s.owns(i) or self._bug is Bug.NO_LEASE

    def _is_fenced(self, journal: Journal, w: Worker) -> bool:
        return journal.token > w.token and self._bug is not Bug.NO_FENCE

    def _own(self, s: State, i: int) -> State:
        token = max(s.clock, s.stored_token + 1) if s.redis else s.clock
        stored = max(s.stored_token, token) if s.redis else s.stored_token
        s = s._replace(clock=token + 1, stored_token=stored)
        return s.put(i, s.workers[i]._replace(token=token, doing="claim"))

    def _fenced(self, s: State, i: int) -> State:
        """An owner tries again with a new token; a worker that lost the partition stops."""
        return self._own(s, i) if s.owns(i) else s.put(i, Worker())

    def _begun(self, s: State, i: int, standing: str) -> State:
        w = s.workers[i]
        w = w._replace(doing="run", attempt=w.token, made=0, bounds=(), sent=0, seed=None)
        return s.put(i, w._replace(standing=standing))

    def _claim(self, s: State, i: int) -> Moves:
        w, journal = s.workers[i], s.journal
        if not s.redis:
            is_alone = w.is_fresh or self._bug is Bug.NOT_FRESH
            if self._may_be_created(s, i) and is_alone:
                yield "claim unjournaled", self._begun(self._own(s, i), i, "unjournaled")
        elif journal is None:
            if self._may_be_created(s, i):
                s = s._replace(journal=Journal(w.token, w.token, (), None))
                yield from _unanswered(s, "claim new")
                yield "claim new", self._begun(s, i, "journaled")
        elif self._is_fenced(journal, w):
            yield "claim fenced", self._fenced(s, i)
        else:
            if journal.seed is None and self._bug is not Bug.EMPTY_ATTEMPT:
                journal = journal._replace(attempt=w.token)
            s = s._replace(journal=journal._replace(token=w.token))
            yield from _unanswered(s, "claim resume")
            resumed = self._begun(s, i, "journaled").workers[i]
            made = journal.bounds[-1] if journal.bounds else 0
            resumed = resumed._replace(attempt=journal.attempt, made=made)
            resumed = resumed._replace(bounds=journal.bounds, seed=journal.seed)
            yield "claim resume", s.put(i, resumed)

    def _new_attempt(self, s: State, i: int) -> State:
        s = self._own(s, i)
        w = s.workers[i]
        bounds = (w.made,) if w.made else ()
        s = s._replace(journal=Journal(w.token, w.token, bounds, w.seed))
        w = w._replace(doing="run", attempt=w.token, bounds=bounds, sent=0, standing="journaled")
        return s.put(i, w)

    def _flush(self, s: State, i: int) -> Moves:
        w, journal = s.workers[i], s.journal
        if w.made == w.flushed and w.standing == "journaled":
            return
        if not s.redis:
            yield from self._flush_without_redis(s, i)
            return
        written = s._replace(journal=Journal(w.attempt, w.token, w.bounds_with_the_rest, w.seed))
        flushed = w._replace(bounds=w.bounds_with_the_rest)
        if journal is not None and self._is_fenced(journal, w):
            yield "flush fenced", self._fenced(s, i)
        elif w.standing != "journaled":
            if journal is not None or self._may_be_created(s, i):
                adopting = written.put(i, w._replace(standing="adopting"))
                yield from _unanswered(adopting, "adopt")
                yield "adopt", written.put(i, flushed._replace(standing="journaled"))
        elif journal is None:
            if self._bug is Bug.OLD_ATTEMPT:
                yield "flush recreate", written.put(i, flushed)
            elif self._may_be_created(s, i):
                yield "flush new attempt", self._new_attempt(s, i)
        else:
            yield from _unanswered(written, "flush")
            yield "flush", written.put(i, flushed)

    def _flush_without_redis(self, s: State, i: int) -> Moves:
        w = s.workers[i]
        may = w.standing == "unjournaled" and self._may_be_created(s, i)
        may |= w.standing == "adopting" and self._bug is Bug.PUBLISH_WHILE_ADOPTING
        may |= w.standing == "journaled" and self._bug is Bug.PUBLISH_WHILE_AWAY
        if may and w.made > w.flushed:
            yield "flush unjournaled", s.put(i, w._replace(bounds=w.bounds_with_the_rest))

    def _publish(self, s: State, i: int) -> Moves:
        w = s.workers[i]
        bounds = w.bounds
        if self._bug is Bug.PUBLISH_BEFORE_JOURNAL:
            bounds = w.bounds_with_the_rest
        if w.sent < len(bounds):
            begin = bounds[w.sent - 1] if w.sent else 0
            event = Event(w.attempt, w.sent, begin, bounds[w.sent], w.seed)
            s = s._replace(log=s.log if event in s.log else (*s.log, event))
            is_allowed = w.sent < len(w.bounds)
            yield "publish", s.put(i, w._replace(sent=w.sent + 1)) if is_allowed else s

    def _confirm(self, s: State, i: int) -> Moves:
        w, journal = s.workers[i], s.journal
        if w.flushed != NUM_TOKENS or w.sent != len(w.bounds):
            return
        confirmed = s.put(i, w._replace(doing="confirmed"))
        if not s.redis:
            if w.standing != "journaled":
                yield "confirm without a journal", confirmed
        elif journal is None:
            if self._may_be_created(s, i):
                yield "confirm new attempt", self._new_attempt(s, i)
        elif journal.token == w.token:
            yield "confirm", confirmed
        elif journal.token > w.token:
            yield "confirm fenced", self._fenced(s, i)
        else:
            s = s._replace(journal=Journal(w.attempt, w.token, w.bounds, w.seed))
            yield "confirm adopt", s.put(i, w._replace(standing="journaled"))

    def _commit(self, s: State, i: int) -> Moves:
        w = s.workers[i]
        is_ready = w.doing == "confirmed"
        if self._bug is Bug.COMMIT_BEFORE_PUBLISH:
            is_ready = w.flushed == NUM_TOKENS
        if is_ready:
            s = s._replace(committed=s.committed or s.owns(i))
            yield "commit", s.put(i, Worker(generation=w.generation))

    def _work(self, s: State, i: int) -> Moves:
        w = s.workers[i]
        if w.up != "up":
            return
        if w.generation and s.owner != i:
            yield "revoked", s.put(i, Worker())
        if w.doing == "claim" and s.arrived:
            yield from self._claim(s, i)
        if w.doing == "run":
            if w.made < NUM_TOKENS:
                seed = w.token if w.seed is None else w.seed
                yield "step", s.put(i, w._replace(made=w.made + 1, seed=seed))
            yield from self._flush(s, i)
            yield from self._publish(s, i)
            yield from self._confirm(s, i)
        if w.doing in ("run", "confirmed"):
            yield from self._commit(s, i)

    def moves(self, s: State) -> Moves:
        """What happens by itself, sooner or later."""
        for i, w in enumerate(s.workers):
            for name, after in self._work(s, i):
                yield f"{name} {i}", after
            is_new = s.owner == i and w.generation != s.generation
            if is_new and w.up == "up" and not s.committed:
                yield f"own {i}", self._own(s.put(i, Worker(generation=s.generation)), i)
            if w.up == "dead":
                yield f"restart {i}", s.put(i, Worker())
            if w.up == "paused":
                yield f"wake {i}", s.put(i, w._replace(up="up"))
            if s.workers[s.owner].up != "up" and w.up == "up":  # the session timeout is over
                s_assigned = s._replace(owner=i, generation=s.generation + 1, clock=s.clock + 1)
                yield f"assign {i}", s_assigned
        if not s.arrived:
            first, second = (w._replace(is_fresh=s.owns(i)) for i, w in enumerate(s.workers))
            yield "arrive", s._replace(arrived=True, workers=(first, second))
        if not s.redis:
            yield "redis back", s._replace(redis=True)

    def faults(self, s: State) -> Moves:
        """What may happen or not."""
        for i, w in enumerate(s.workers):
            if w.up == "up" and s.budget.crashes:
                yield f"crash {i}", s.spend("crashes").put(i, Worker(up="dead"))
            if w.up == "up" and s.budget.pauses:
                yield f"pause {i}", s.spend("pauses").put(i, w._replace(up="paused"))
        if s.redis and s.budget.losses:
            yield "redis empty", s.spend("losses")._replace(stored_token=0, journal=None)
        if s.redis and s.budget.outages:
            yield "redis away", s.spend("outages")._replace(redis=False)


def _unanswered(s: State, name: str) -> Moves:
    """It is carried out, and whoever asked goes on as if it had not been."""
    if s.budget.unanswered:
        yield f"{name}, no answer", s.spend("unanswered")


def read(log: tuple[Event, ...]) -> tuple[int, bool]:
    """What a reader has: tokens, and whether it has seen the last event. Raises: ViolationError."""
    contents: dict[tuple[int, int], Event] = {}
    seeds: dict[int, int | None] = {}
    attempt, expected, end, finished = 0, 0, 0, False
    for event in log:
        first = contents.setdefault((event.attempt, event.number), event)
        if first != event:
            raise ViolationError(f"two contents: {first} and {event}")
        if seeds.setdefault(event.attempt, event.seed) != event.seed:
            raise ViolationError(f"attempt {event.attempt} goes on with another seed")
        if finished or event.attempt < attempt:
            continue
        if event.attempt > attempt:
            attempt, expected, end = event.attempt, 0, 0
        if event.number > expected:
            raise ViolationError(f"gap: expected {expected}, got {event}")
        if event.number == expected:
            if event.begin != end:
                raise ViolationError(f"text jumps from {end} to {event.begin}")
            expected, end, finished = expected + 1, event.end, event.is_last
    return end, finished


def explore(budget: Budget, bug: Bug | None = None) -> tuple[int, str]:
    """Number of states, and the violation with the way to it; empty: there is none."""
    model, start = Model(bug), State(budget)
    came: dict[State, tuple[State, str] | None] = {start: None}
    to_do = deque([start])
    while to_do:
        s = to_do.popleft()
        try:
            moves = list(model.moves(s))
            _check(s, can_move=bool(moves))
        except ViolationError as problem:
            return len(came), f"{problem}\n  " + "\n  ".join(_way(came, s))
        for name, after in [*moves, *model.faults(s)]:
            if after not in came:
                came[after] = (s, name)
                to_do.append(after)
    return len(came), ""


def _check(s: State, *, can_move: bool) -> None:
    end, finished = read(s.log)
    if s.committed and not finished:
        raise ViolationError("committed, but the reader has no last event")
    if not can_move and not (s.committed and end == NUM_TOKENS):
        raise ViolationError(f"stuck: committed={s.committed}, the reader has {end} tokens")


def _way(came: dict[State, tuple[State, str] | None], s: State) -> list[str]:
    names: list[str] = []
    while (before := came[s]) is not None:
        s, name = before
        names.append(name)
    return names[::-1]


def main(args: list[str]) -> int:
    bug = Bug(args[args.index("--bug") + 1]) if "--bug" in args else None
    budget = Budget(*(int(one) for one in args if one.isdigit()))
    num_states, problem = explore(budget, bug)
    print(f"{num_states} states explored: {problem or 'no violation'}", flush=True)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
