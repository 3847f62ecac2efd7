"""A load's arrivals and schedule, whatever the rate, the seed and the answers."""

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.producers.load_arrivals import Arrival, constant_times, poisson_times
from headrace.producers.load_schedule import LoadSchedule, Turn
from headrace.producers.load_session import shaped_sessions
from headrace.producers.load_shapes import BUILT_IN
from tests.loads import PlainSession

RATES = st.floats(0.01, 10_000)
SEEDS = st.integers(0, 2**31)


@given(RATES, SEEDS)
def test_poisson_times_never_go_back_and_are_the_seeds(rate: float, seed: int) -> None:
    """The same seed, the same times."""
    times = list(islice(poisson_times(rate, seed=seed), 200))
    assert times == list(islice(poisson_times(rate, seed=seed), 200))
    assert all(0 < before <= after for before, after in pairwise(times))


@given(RATES, SEEDS)
def test_poisson_times_come_at_the_rate(rate: float, seed: int) -> None:
    """2,000 arrivals take 2,000 / rate seconds, within 6 standard deviations."""
    (at_s,) = islice(poisson_times(rate, seed=seed), 1999, 2000)
    assert at_s * rate == pytest.approx(2000, abs=6 * 2000**0.5)


def test_poisson_times_bunch() -> None:
    """Gaps are exponential: 1/e of them are longer than the mean, and 5 % than three means."""
    times = [0.0, *islice(poisson_times(5, seed=1), 20_000)]
    gaps = [(after - before) * 5 for before, after in pairwise(times)]
    assert sum(gap > 1 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.02)
    assert sum(gap > 3 for gap in gaps) / len(gaps) == pytest.approx(0.0498, abs=0.01)


@given(RATES)
def test_constant_times_are_even(rate: float) -> None:
    """From 0 on."""
    times = list(islice(constant_times(rate), 50))
    assert times == [number / rate for number in range(50)]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_must_be_a_positive_number(rate: float) -> None:
    """Anything else would loop for ever, or never."""
    with pytest.raises(ValueError, match="above 0"):
        next(poisson_times(rate, seed=0))
    with pytest.raises(ValueError, match="above 0"):
        next(constant_times(rate))


@given(SEEDS, st.sampled_from(sorted(BUILT_IN)))
def test_sessions_are_the_seeds(seed: int, name: str) -> None:
    """What a session asks depends on seed and number alone, not on when it is asked."""
    shapes = [BUILT_IN[name]]
    for one, other in zip(
        islice(shaped_sessions(shapes, seed=seed, run_id="a"), 3),
        islice(shaped_sessions(shapes, seed=seed, run_id="b"), 3),
        strict=True,
    ):
        turns = range(1, one.num_turns + 1)
        assert [one.body(t) for t in turns] == [other.body(t) for t in reversed(turns)][::-1]
        assert one.session_id != other.session_id


@st.composite
def loads(draw: st.DrawFn) -> list[Arrival]:
    gaps = draw(st.lists(st.floats(0, 3), max_size=30))
    turns = draw(st.lists(st.integers(1, 4), min_size=len(gaps), max_size=len(gaps)))
    found, now_s = [], 0.0
    for number, (gap_s, num_turns) in enumerate(zip(gaps, turns, strict=True)):
        now_s += gap_s
        pause_s = draw(st.floats(0, 2))
        found.append(Arrival(now_s, PlainSession(str(number), num_turns, pause_s)))
    return found


@given(loads(), st.data())
def test_a_schedule_hands_everything_out_once_in_order(
    load: list[Arrival], data: st.DataObject
) -> None:
    """Each turn of each session once, none before it is due, one after the other; sessions are
    complete or given up in the end.
    """
    schedule = LoadSchedule(iter(load))
    now_s, taken, open_turns = 0.0, list[Turn](), list[Turn]()
    due_by_turn: dict[tuple[str, int], float] = {(a.session.session_id, 1): a.due_s for a in load}
    while open_turns or not schedule.is_over:
        while (turn := schedule.take(now_s)) is not None:
            assert turn.due_s <= now_s
            assert turn.due_s == due_by_turn.pop((turn.session.session_id, turn.number))
            taken.append(turn)
            open_turns.append(turn)
        now_s += data.draw(st.floats(0.1, 3), label="passes")
        if not open_turns or data.draw(st.booleans(), label="wait"):
            continue
        turn = open_turns.pop(data.draw(st.integers(0, len(open_turns) - 1), label="answered"))
        if data.draw(st.booleans(), label="fails"):
            schedule.gave_up(turn)
            continue
        schedule.answered(turn, now_s)
        if not turn.is_last:
            next_due_s = now_s + turn.session.think_s(turn.number + 1)
            due_by_turn[turn.session.session_id, turn.number + 1] = next_due_s
    assert due_by_turn == {}
    assert len({(t.session.session_id, t.number) for t in taken}) == len(taken)
    assert (schedule.num_sessions, schedule.num_cut) == (len(load), 0)
    assert schedule.num_complete + schedule.num_given_up == len(load)


@given(loads(), st.floats(0, 60))
def test_first_turns_do_not_depend_on_answers(load: list[Arrival], stall_s: float) -> None:
    """A server that answers nothing is asked at the same times as one that answers at once."""
    due_s: list[list[float]] = []
    for answers in (True, False):
        schedule, found = LoadSchedule(iter(load)), []
        while (turn := schedule.take(1000 + stall_s)) is not None:
            found += [turn.due_s] if turn.number == 1 else []
            if answers:
                schedule.answered(turn, turn.due_s)
        due_s.append(found)
    assert sorted(due_s[0]) == sorted(due_s[1]) == [arrival.due_s for arrival in load]
