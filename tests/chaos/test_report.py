"""The report of a chaos run: which fault a pause and a problem belong to."""

import pytest

from tests.chaos.book import Asked, AskedKind, Book, FaultRun, Problem
from tests.chaos.plan import FaultKind
from tests.chaos.report import Pause, pauses, problem_lines, rows, table


def asked_with(times: list[float], *, name: str = "r1") -> Asked:
    """A streamed answer whose events came at `times`."""
    asked = Asked(name, "s1", AskedKind.ANSWER, asked_s=times[0] - 0.5)
    asked.reply.arrived_s = times
    asked.reply.finished_s = times[-1]
    return asked


def fault(begin_s: float, end_s: float, kind: FaultKind = FaultKind.REDIS_PAUSED) -> FaultRun:
    return FaultRun(0, kind, begin_s, end_s)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "expected"),
    [
        (11.0, 11.0, [Pause(4.0, 4.0)]),  # a kill: all of it is the recovery
        (11.0, 13.0, [Pause(4.0, 2.0)]),  # the fault's own time in the gap does not count
        (9.5, 11.0, [Pause(1.0, 0.5), Pause(4.0, 3.0)]),  # it began in the gap before
        (16.0, 17.0, []),
    ],
)
def test_a_pause_belongs_to_the_fault_that_was_there_meanwhile(
    begin_s: float, end_s: float, expected: list[Pause]
) -> None:
    """Gaps of 1 s and 4 s."""
    one = fault(begin_s, end_s)
    assert expected == pauses(asked_with([9.0, 10.0, 14.0]), one, [one])


def test_faults_that_overlap_are_taken_off_a_pause_once() -> None:
    """A kill in a pause of 6 s, of which two other faults lasted from 11 to 14."""
    killed = fault(11.5, 11.5, FaultKind.WORKER_KILLED)
    others = [fault(11.0, 13.0), fault(12.0, 14.0)]
    assert pauses(asked_with([10.0, 16.0]), killed, [killed, *others]) == [Pause(6.0, 3.0)]


def test_a_row_counts_the_requests_that_were_in_flight() -> None:
    """Of two requests the fault hit one; its pause and the problem are the row's."""
    book = Book()
    book.add(asked_with([10.0, 14.0], name="hit"))
    book.add(asked_with([30.0, 31.0], name="spared"))
    book.faults.append(fault(11.0, 12.0))
    book.note(Problem("different", "token 3", "hit", 10.0, 14.0))
    (row,) = rows(book)
    expected = {
        "fault": "Redis paused",
        "struck": 1,
        "in flight": 1,
        "lost": 0,
        "doubled": 0,
        "different": 1,
        "out of order": 0,
        "restarts": 0,
        "longest pause s": 4.0,
        "beyond it s": 3.0,
    }
    assert expected == row


def test_the_table_has_a_line_for_each_kind_that_struck() -> None:
    """And a dash where no stream was under way."""
    book = Book()
    book.faults += [fault(1, 2), fault(5, 6), fault(3, 4, FaultKind.KAFKA_KILLED)]
    lines = table(book).splitlines()[2:]
    names = [line.split("|")[1].strip() for line in lines]
    assert names == ["Redis paused", "Kafka killed"]
    assert [line.split("|")[2].strip() for line in lines] == ["2", "1"]
    assert lines[0].split("|")[-2].strip() == "-"


def test_a_problem_names_its_request_and_the_faults_over_it() -> None:
    """Those that overlapped the request's life, and no others."""
    book = Book()
    book.started_s = 100.0
    book.faults += [fault(111.0, 112.0), fault(150.0, 151.0, FaultKind.KAFKA_KILLED)]
    book.note(Problem("lost", "no last event", "r7", 110.0, 120.0))
    expected = "lost: r7: no last event (10.0 to 20.0 s; faults: 1 Redis paused)"
    assert [expected] == problem_lines(book)


def test_a_journal_may_be_lost_by_faults_of_redis_only() -> None:
    """Also shortly after: a worker that has not noticed yet goes on without a journal."""
    book = Book()
    book.faults += [fault(10.0, 12.0), fault(30.0, 31.0, FaultKind.WORKER_KILLED)]
    assert book.journal_lost(8.0, 10.5)
    assert book.journal_lost(14.0, 15.0)
    assert not book.journal_lost(20.0, 40.0)
