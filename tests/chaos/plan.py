"""What a run asks and what breaks, drawn from a seed: the same seed gives the same plan.

Pure. Knows nothing of processes; times are nominal seconds, which the run may stretch.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FIRST_FAULT_S = 4.0
QUIET_END_S = 4.0
OVERLAP_CHANCE = 0.2
OVERLAP_S = 1.5
LONG_RUN_FAULTS = 40
REQUESTS_PER_S = 4.0
"""Where no fault says how long a run is."""


class FaultKind(StrEnum):
    """What can break."""

    WORKER_KILLED = "worker killed"
    TWO_WORKERS_KILLED = "two workers killed"
    WORKER_DRAINED = "worker drained"
    WORKER_PAUSED = "worker paused 2 s"
    WORKER_ZOMBIE = "worker stopped 9 s"
    WORKER_ZOMBIE_LONG = "worker stopped 60 s"
    WORKER_JOINS = "worker joins"
    WORKER_LEAVES = "worker leaves"
    REDIS_RESTARTED = "Redis restarted empty"
    REDIS_FLUSHED = "Redis flushed"
    REDIS_PAUSED = "Redis paused"
    REDIS_SLOW = "Redis slow"
    REDIS_SILENT = "Redis black-holed"
    REDIS_CUT = "Redis connections cut"
    REDIS_FULL = "Redis full"
    KAFKA_RESTARTED = "Kafka restarted"
    KAFKA_KILLED = "Kafka killed"
    KAFKA_PAUSED = "Kafka paused 8 s"
    DEADLY_REQUEST = "deadly request"


EVERY_KIND = tuple(kind for kind in FaultKind if kind is not FaultKind.WORKER_ZOMBIE_LONG)

NOMINAL_S = {
    FaultKind.WORKER_KILLED: 12.0,
    FaultKind.TWO_WORKERS_KILLED: 15.0,
    FaultKind.WORKER_DRAINED: 8.0,
    FaultKind.WORKER_PAUSED: 5.0,
    FaultKind.WORKER_ZOMBIE: 14.0,
    FaultKind.WORKER_ZOMBIE_LONG: 66.0,
    FaultKind.WORKER_JOINS: 8.0,
    FaultKind.WORKER_LEAVES: 6.0,
    FaultKind.REDIS_RESTARTED: 7.0,
    FaultKind.REDIS_FLUSHED: 5.0,
    FaultKind.REDIS_PAUSED: 9.0,
    FaultKind.REDIS_SLOW: 11.0,
    FaultKind.REDIS_SILENT: 9.0,
    FaultKind.REDIS_CUT: 6.0,
    FaultKind.REDIS_FULL: 9.0,
    FaultKind.KAFKA_RESTARTED: 14.0,
    FaultKind.KAFKA_KILLED: 15.0,
    FaultKind.KAFKA_PAUSED: 15.0,
    FaultKind.DEADLY_REQUEST: 40.0,
}
"""How much time of the plan each has: itself, and what follows from it."""


class SessionKind(StrEnum):
    """What a client does in a session."""

    ONE_TURN = "one turn"
    CONVERSATION = "conversation"
    PIPELINED = "pipelined"
    """All turns are sent at once."""
    BURST = "burst"
    """Several whole conversations in one session, sent at once."""
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    TOMBSTONE = "tombstone"
    """Two turns, the session deleted, and a turn of a new one."""
    POISON = "poison"
    ABORTED = "aborted"
    """Sent in a transaction that is aborted: nobody may ever answer it."""


_SHARES = {
    SessionKind.ONE_TURN: 40,
    SessionKind.CONVERSATION: 22,
    SessionKind.PIPELINED: 6,
    SessionKind.BURST: 6,
    SessionKind.CANCELLED: 8,
    SessionKind.DUPLICATE: 6,
    SessionKind.TOMBSTONE: 4,
    SessionKind.POISON: 5,
    SessionKind.ABORTED: 3,
}

SENTENCES = (
    "The river runs past the mill and the wheel turns all day long.",
    "What is the capital of France?",
    "Hello world! How are you today?",
    "A headrace is the channel that brings water to the wheel of a mill.",
    "Der Fluss fließt an der Mühle vorbei, und das Rad dreht sich.",
    "Où est la bibliothèque ? Elle est à côté du café.",
    "今日はいい天気ですね。",
    "Река течёт мимо мельницы. 😀",
)
STOPS = (("e",), ("th",), ("a", "o"), ("in",), ("zz",))


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its new message, and how it is to be answered."""

    request_id: str
    text: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session. `pause_s`: between turns, or before the cancel or the second record."""

    name: str
    kind: SessionKind
    at_s: float
    turns: tuple[Turn, ...]
    pause_s: float
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """One fault. `pick` in [0, 1) chooses the victim, `span` in [0, 1) how long or how bad."""

    number: int
    kind: FaultKind
    at_s: float
    pick: float
    span: float


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    sessions: tuple[SessionPlan, ...]
    faults: tuple[FaultPlan, ...]
    length_s: float

    @property
    def num_requests(self) -> int:
        """Those that must be answered, as planned; clients may have to ask again."""
        return sum(len(session.turns) for session in self.sessions)


def make_plan(
    seed: int,
    *,
    requests: int,
    faults: int,
    kinds: Sequence[FaultKind] = EVERY_KIND,
    pace: float = 1.0,
) -> Plan:
    """Draw a plan with `requests` requests and `faults` faults, in which every kind comes up
    before one comes up again. `pace`: the part of their nominal time that faults get.
    """
    rng = random.Random(seed)
    drawn, end_s = _faults(rng, _order(rng, faults, kinds), pace)
    length_s = end_s if drawn else requests / REQUESTS_PER_S
    return Plan(seed, tuple(_sessions(rng, seed, requests, length_s)), tuple(drawn), length_s)


def _order(rng: random.Random, count: int, kinds: Sequence[FaultKind]) -> list[FaultKind]:
    order: list[FaultKind] = []
    while kinds and len(order) < count:
        order += _join_before_leave(rng.sample(list(kinds), len(kinds)))
    order = order[:count]
    if count >= LONG_RUN_FAULTS and kinds == EVERY_KIND:
        order[rng.randrange(count)] = FaultKind.WORKER_ZOMBIE_LONG
    return order


def _join_before_leave(kinds: list[FaultKind]) -> list[FaultKind]:
    """So that a run with two workers never has to go on with one."""
    joins, leaves = FaultKind.WORKER_JOINS, FaultKind.WORKER_LEAVES
    if joins in kinds and leaves in kinds and kinds.index(leaves) < kinds.index(joins):
        swapped = {joins: leaves, leaves: joins}
        return [swapped.get(kind, kind) for kind in kinds]
    return kinds


def _faults(
    rng: random.Random, order: Sequence[FaultKind], pace: float
) -> tuple[list[FaultPlan], float]:
    drawn, at_s = [], FIRST_FAULT_S
    for number, kind in enumerate(order):
        drawn.append(FaultPlan(number, kind, at_s, rng.random(), rng.random()))
        at_s += OVERLAP_S if rng.random() < OVERLAP_CHANCE else pace * NOMINAL_S[kind]
    longest_s = max((one.at_s + pace * NOMINAL_S[one.kind] for one in drawn), default=0.0)
    return drawn, max(at_s, longest_s) + QUIET_END_S


def _sessions(rng: random.Random, seed: int, requests: int, length_s: float) -> list[SessionPlan]:
    sessions: list[SessionPlan] = []
    asked = 0
    kinds, shares = list(_SHARES), list(_SHARES.values())
    while asked < requests:
        kind = rng.choices(kinds, shares)[0]
        turns = min(_num_turns(rng, kind), requests - asked)
        name = f"s{seed}-{len(sessions)}"
        session = _session(rng, name, kind, turns, length_s)
        sessions.append(session)
        asked += len(session.turns)
    return sorted(sessions, key=lambda session: session.at_s)


def _num_turns(rng: random.Random, kind: SessionKind) -> int:
    if kind is SessionKind.CONVERSATION:
        return rng.randint(2, 5)
    if kind in (SessionKind.PIPELINED, SessionKind.BURST):
        return rng.randint(2, 4)
    if kind is SessionKind.TOMBSTONE:
        return 3
    return 0 if kind in (SessionKind.POISON, SessionKind.ABORTED) else 1


def _session(
    rng: random.Random, name: str, kind: SessionKind, num_turns: int, length_s: float
) -> SessionPlan:
    turns = tuple(_turn(rng, f"{name}-{n}", kind) for n in range(num_turns))
    return SessionPlan(
        name=name,
        kind=kind,
        at_s=rng.uniform(0.0, max(0.0, length_s - QUIET_END_S)),
        turns=turns,
        pause_s=rng.uniform(0.0, 2.0),
        payload=_poison(rng, name) if kind is SessionKind.POISON else b"",
    )


def _turn(rng: random.Random, request_id: str, kind: SessionKind) -> Turn:
    text = " ".join(rng.choices(SENTENCES, k=rng.randint(1, 3))) + f" {rng.randrange(10**6)}"
    options: dict[str, Any] = {"max_tokens": _num_tokens(rng, kind), "return_token_ids": True}
    sampling = rng.random()
    if sampling < 0.5:
        options["temperature"] = 0
    else:
        options |= {"temperature": round(rng.uniform(0.3, 1.2), 2), "top_p": 0.95}
    if sampling > 0.6:
        options["seed"] = rng.randrange(2**31)
    if rng.random() < 0.25 and kind is not SessionKind.CANCELLED:
        options["stream"] = False
    if rng.random() < 0.15:
        options["stop"] = list(rng.choice(STOPS))
    else:
        options["ignore_eos"] = rng.random() < 0.8
    return Turn(request_id, text, options)


def _num_tokens(rng: random.Random, kind: SessionKind) -> int:
    if kind is SessionKind.CANCELLED:
        return rng.randint(200, 400)
    size = rng.random()
    if size < 0.55:
        return rng.randint(4, 60)
    return rng.randint(60, 200) if size < 0.85 else rng.randint(200, 500)


def _poison(rng: random.Random, name: str) -> bytes:
    """Bytes that hold no request, different from all others."""
    mark = name.encode()
    return rng.choice(
        [
            b"\xff\xfe\x00 " + mark,
            b'{"messages": [{"role": "user", "content": "' + mark,
            b'["' + mark + b'"]',
            b'"' + mark + b'"',
            mark,
        ]
    )
