"""When a schedule closes, and what it leaves out."""

from headrace.producers.load_arrivals import Arrival
from headrace.producers.load_schedule import LoadSchedule, Turn
from tests.loads import PlainSession


def every_second(count: int, *, num_turns: int = 1, pause_s: float = 0.0) -> list[Arrival]:
    return [Arrival(float(i), PlainSession(str(i), num_turns, pause_s)) for i in range(count)]


def taken(schedule: LoadSchedule, now_s: float) -> list[Turn]:
    found = []
    while (turn := schedule.take(now_s)) is not None:
        found.append(turn)
    return found


def test_what_is_due_in_the_warm_up_does_not_count() -> None:
    """Nor towards the number of requests."""
    schedule = LoadSchedule(iter(every_second(100)), warm_up_s=3.0, max_requests=2)
    found = taken(schedule, 50.0)
    assert [turn.measured for turn in found] == [False, False, False, True, True]
    assert schedule.is_over


def test_a_late_generator_sends_what_was_due_before_the_end() -> None:
    """And nothing that is due later; sessions that are under way are cut."""
    schedule = LoadSchedule(iter(every_second(100, num_turns=2, pause_s=9.0)), end_s=3.0)
    assert schedule.next_wake_s == 0.0
    found = taken(schedule, 60.0)
    assert [turn.due_s for turn in found] == [0.0, 1.0, 2.0]
    assert schedule.is_over
    for turn in found:
        schedule.answered(turn, 61.0)
    assert (schedule.num_cut, schedule.num_complete, taken(schedule, 99.0)) == (3, 0, [])


def test_the_end_is_waited_for() -> None:
    """Where nothing is known to be due before it, an answer may still make something due."""
    schedule = LoadSchedule(iter(every_second(1, num_turns=2, pause_s=0.5)), end_s=3.0)
    (turn,) = taken(schedule, 0.0)
    assert (schedule.next_due_s, schedule.next_wake_s) == (None, 3.0)
    schedule.answered(turn, 1.0)
    assert schedule.next_wake_s == 1.5
    (second,) = taken(schedule, 1.5)
    assert (second.number, second.due_s, second.session_due_s, second.is_last) == (
        2,
        1.5,
        0.0,
        True,
    )


def test_without_an_end_it_is_over_with_the_last_turn() -> None:
    """A recording ends by itself, whether or not its last turns are answered."""
    schedule = LoadSchedule(iter(every_second(1, num_turns=2)))
    (turn,) = taken(schedule, 5.0)
    assert (schedule.is_over, schedule.next_wake_s) == (False, None)
    schedule.answered(turn, 6.0)
    assert not schedule.is_over
    assert len(taken(schedule, 6.0)) == 1
    assert schedule.is_over


def test_a_session_whose_turn_failed_asks_nothing_more() -> None:
    """As somebody who got an error would."""
    schedule = LoadSchedule(iter(every_second(1, num_turns=5)))
    (turn,) = taken(schedule, 0.0)
    schedule.gave_up(turn)
    assert (schedule.is_over, schedule.num_given_up) == (True, 1)


def test_a_closed_schedule_hands_nothing_out() -> None:
    """Whatever is due."""
    schedule = LoadSchedule(iter(every_second(3)))
    schedule.close()
    assert (schedule.take(9.0), schedule.next_wake_s, schedule.is_over) == (None, None, True)
