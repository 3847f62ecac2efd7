"""Whatever the cuts, a client hands out the events of an uncut run."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.producers.client_events import Event
from headrace.producers.client_follow import Frame, RequestFollow, SessionFollow
from headrace.schemas.reply import ReplyReader, Seen
from tests.unit.consumers.doubles import completion, writer

Log = list[dict[str, Any]]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A request's events as workers may write them: attempts, each from its start, and repeats."""
    log: Log = []
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    for attempt, size in enumerate(sizes, start=1):
        build = writer("r1", "s1", attempt=attempt)
        ends = attempt == len(sizes)
        for number in range(size):
            done = completion() if ends and number == size - 1 else None
            log.append(orjson.loads(build.chunk(number, f"{number} ", completion=done).value))
            if draw(st.booleans()):
                log.append(draw(st.sampled_from(log)))
    return log


def gateway(frame: Frame, log: Log) -> list[Frame]:
    """What a gateway sends for `frame` once: the reader's rule, from the place that it names."""
    start, reader = 0, ReplyReader(starting_after=frame.get("starting_after"))
    if "cursor" in frame:
        start = int(frame["cursor"]) + 1
        seen = log[start - 1]
        reader = ReplyReader(starting_after=seen["sequence_number"] - 1)
        reader.see(seen)
    return [
        {"type": "event", "cursor": str(place), "event": event}
        for place, event in enumerate(log[start:], start=start)
        if reader.see(event) in (Seen.NEW, Seen.RESTART)
    ]


def what(events: list[Event]) -> list[tuple[str, int, int, str]]:
    return [(type(it).__name__, it.attempt, it.sequence_number, it.text) for it in events]


def new_follow() -> RequestFollow:
    return RequestFollow("r1", "s1", body={"request_id": "r1", "prompt": "x"})


def uncut(log: Log) -> list[tuple[str, int, int, str]]:
    follow = new_follow()
    found: list[Event] = []
    for frame in gateway(follow.frame(), log):
        found += follow.take(frame) or []
    assert follow.finished
    return what(found)


@given(
    log=logs(),
    cuts=st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.booleans()), max_size=8),
)
def test_cuts_change_nothing(log: Log, cuts: list[tuple[bool, int, bool]]) -> None:
    """Each socket: `accepted` comes or not, then some events, some twice; then it is lost."""
    follow, found = new_follow(), list[Event]()
    for accepted, count, again in [*cuts, (True, len(log), False)]:
        if follow.finished:
            break
        asked = follow.frame()
        assert asked["type"] == ("subscribe" if follow.is_accepted else "generate")
        assert asked["request_id"] == "r1"
        follow.is_accepted |= accepted
        for frame in gateway(asked, log)[:count]:
            for copy in [frame] * (1 + again):
                found += follow.take(copy) or []
    assert what(found) == uncut(log)


@given(log=logs(), lost=st.sets(st.integers(0, 20)))
def test_a_hole_is_asked_for_again(log: Log, lost: set[int]) -> None:
    """Events that a full buffer let pass come in the end; or the attempt they were of is over."""
    follow, found = new_follow(), list[Event]()
    for place, frame in enumerate(gateway(follow.frame(), log)):
        if place not in lost:
            found += follow.take(frame) or []
    follow.is_accepted = True
    if not follow.finished:
        for frame in gateway(follow.frame(), log):
            found += follow.take(frame) or []
    kept = [one for one in what(found) if one[0] != "Restarted"]
    whole = [one for one in uncut(log) if one[0] != "Restarted"]
    last = whole[-1][1]
    assert [one for one in kept if one[1] == last] == [one for one in whole if one[1] == last]


@given(log=logs(), after=st.integers(-1, 3))
def test_resuming_behind_a_number_is_told_of_a_new_attempt(log: Log, after: int) -> None:
    """Nothing of what the reader has comes again, except a larger attempt from its start."""
    follow = RequestFollow("r1", "s1", starting_after=after)
    found: list[Event] = []
    for frame in gateway(follow.frame(), log):
        found += follow.take(frame) or []
    expected = uncut(log)
    first = next((n for n, one in enumerate(expected) if one[1] == 1 and one[2] > after), None)
    if first is None:
        first = next((n for n, one in enumerate(expected) if one[1] > 1), len(expected))
    assert what(found) == expected[first:]


@given(log=logs(), cuts=st.lists(st.integers(0, 6), max_size=6))
def test_a_session_is_read_once_through_cuts(log: Log, cuts: list[int]) -> None:
    """From the log's start: the same events, whatever the cuts."""
    second = [{**event, "id": "r2"} for event in log]

    def served(frame: Frame) -> list[Frame]:
        """NOTE: behind a cursor, a gateway knows the request of that event only."""
        both = [*log, *second]
        start = int(frame["cursor"]) + 1 if "cursor" in frame else 0
        readers: dict[str, ReplyReader] = {}
        if start:
            seen = both[start - 1]
            readers[seen["id"]] = ReplyReader(starting_after=seen["sequence_number"] - 1)
            readers[seen["id"]].see(seen)
        found = []
        for place, event in enumerate(both[start:], start=start):
            before = ReplyReader(starting_after=event["sequence_number"] - 1)
            reader = readers.setdefault(event["id"], before)
            if reader.see(event) in (Seen.NEW, Seen.RESTART):
                found.append({"type": "event", "cursor": str(place), "event": event})
        return found

    follow, found = SessionFollow("s1", from_start=True), list[Event]()
    for count in [*cuts, 2 * len(log)]:
        for frame in served(follow.frame())[:count]:
            found += follow.take(frame)
    assert what(found) == uncut(log) + uncut(log)
