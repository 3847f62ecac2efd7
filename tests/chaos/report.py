"""What a run says at its end: a table per kind of fault, the problems, one JSON line.

Pure, but for the machine's name. Pauses are those of readers whose stream was under way.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.lib.report import format_table, machine
from tests.chaos.book import Asked, Book, FaultRun, Problem
from tests.chaos.plan import FaultKind, Plan

COUNTED = ("lost", "doubled", "different", "out of order")
HEADER = ("fault", "struck", "in flight", *COUNTED, "restarts", "longest pause s", "beyond it s")


@dataclass(frozen=True, slots=True)
class Pause:
    """A gap between two events of a stream. `beyond_s`: less the time that faults lasted in it."""

    pause_s: float
    beyond_s: float


def pauses(asked: Asked, fault: FaultRun, faults: Sequence[FaultRun]) -> list[Pause]:
    """The gaps of a stream during which `fault` struck or lasted. `faults`: all of the run."""
    found = []
    begin_s, end_s = fault.window
    times = asked.reply.arrived_s
    for earlier_s, later_s in pairwise(times):
        if earlier_s <= end_s and begin_s <= later_s:
            pause_s = later_s - earlier_s
            found.append(Pause(pause_s, pause_s - _lasted_s(faults, earlier_s, later_s)))
    return found


def _lasted_s(faults: Sequence[FaultRun], begin_s: float, end_s: float) -> float:
    """For how long of this time at least one of the faults lasted."""
    lasted_s, until_s = 0.0, begin_s
    for fault in sorted(faults, key=lambda one: one.struck_s):
        fault_begin_s, fault_end_s = fault.window
        first_s, last_s = max(fault_begin_s, until_s), min(fault_end_s, end_s)
        if last_s > first_s:
            lasted_s += last_s - first_s
            until_s = last_s
    return lasted_s


def problems_of(book: Book, fault: FaultRun) -> list[Problem]:
    """Those whose request's life the fault overlaps."""
    return [one for one in book.problems if fault.overlaps(one.begin_s, one.end_s)]


def rows(book: Book) -> list[dict[str, Any]]:
    """One for each kind of fault that struck, in the order of `FaultKind`."""
    return [
        _row(book, kind, faults)
        for kind in FaultKind
        if (faults := [one for one in book.faults if one.kind is kind])
    ]


def _row(book: Book, kind: FaultKind, faults: Sequence[FaultRun]) -> dict[str, Any]:
    hit = {
        asked.request_id: asked
        for fault in faults
        for asked in book.answerable
        if fault.overlaps(*asked.life)
    }
    gaps = [
        gap
        for fault in faults
        for asked in hit.values()
        for gap in pauses(asked, fault, book.faults)
    ]
    found = {id(one): one for fault in faults for one in problems_of(book, fault)}
    kinds = Counter(one.kind for one in found.values())
    return {
        "fault": kind.value,
        "struck": len(faults),
        "in flight": len(hit),
        **{name: kinds[name] for name in COUNTED},
        "restarts": sum(asked.reply.num_restarts for asked in hit.values()),
        "longest pause s": max((gap.pause_s for gap in gaps), default=None),
        "beyond it s": max((gap.beyond_s for gap in gaps), default=None),
    }


def table(book: Book) -> str:
    """The rows, aligned."""
    return format_table(HEADER, [[_cell(row[name]) for name in HEADER] for row in rows(book)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def problem_lines(book: Book) -> list[str]:
    """Each problem, with the faults that overlapped it."""
    return [_line(book, one) for one in book.problems]


def _line(book: Book, problem: Problem) -> str:
    over = book.faults_over(problem.begin_s, problem.end_s, notice_s=3.0)
    faults = ", ".join(f"{one.number + 1} {one.kind.value} {one.note}".strip() for one in over)
    begin_s, end_s = problem.begin_s - book.started_s, problem.end_s - book.started_s
    when = f"{begin_s:.1f} to {end_s:.1f} s"
    return f"{problem.kind}: {problem.about}: {problem.what} ({when}; faults: {faults or 'none'})"


def summary(book: Book, plan: Plan, durations: dict[str, float]) -> dict[str, Any]:
    """The run as one JSON object."""
    kinds = Counter(one.kind for one in book.problems)
    return {
        "seed": plan.seed,
        "requests": len(book.answerable),
        "answered": book.num_finished,
        "asked_again": book.num_asked_again,
        "faults": len(book.faults),
        "problems": dict(kinds),
        "restarts": sum(asked.reply.num_restarts for asked in book.answerable),
        "dropped_by_readers": sum(asked.reply.num_dropped for asked in book.answerable),
        "tokens": sum(_num_tokens(asked) for asked in book.answerable),
        "redis_max_mb": round(book.redis_max_bytes / 2**20, 1),
        "kinds": rows(book),
        "durations_s": {name: round(value, 1) for name, value in durations.items()},
        "machine": machine(),
    }


def _num_tokens(asked: Asked) -> int:
    if not asked.finished.is_set() or asked.failed:
        return 0
    return len(asked.reply.token_ids)
