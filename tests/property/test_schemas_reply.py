"""A reader of the response log ends with the whole text once, whatever workers repeat.

The logs are those that `delivery_model.py` allows: attempts overlap, any event may be written
again at any time, an event is written only after the one before it, and the largest attempt is
finished in the end.
"""

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.event import Completion, EventWriter, Timings, Usage
from headrace.schemas.reply import ReplyReader, Seen, event_text, is_last

IN_ANY_TIME = settings(deadline=None)  # the machine is shared
Event = dict[str, Any]
DONE = Completion("stop", Usage(1, 1), Timings(), 0, {})


def attempt_events(attempt: int, text: str, cuts: list[int]) -> list[Event]:
    """The events of one attempt, its text cut at `cuts`; a chunk may be empty."""
    writer = EventWriter("r", "s", attempt, 1, "m", "f")
    bounds = [0, *sorted(cuts), len(text)]
    last = len(bounds) - 2
    return [
        orjson.loads(
            writer.chunk(
                number,
                text[bounds[number] : bounds[number + 1]],
                completion=DONE if number == last else None,
            ).value
        )
        for number in range(last + 1)
    ]


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, list[Event]]:
    """A text, and a log of its attempts that ends when a reader can be finished."""
    text = draw(st.text("abcdefgh", max_size=10))
    cuts = st.lists(st.integers(0, len(text)), max_size=3)
    numbers = sorted(draw(st.sets(st.integers(1, 99), min_size=1, max_size=3)))
    attempts = [attempt_events(attempt, text, draw(cuts)) for attempt in numbers]
    written = [0] * len(attempts)
    log: list[Event] = []
    for index in draw(st.lists(st.integers(0, len(attempts) - 1), max_size=20)):
        number = draw(st.integers(0, min(written[index], len(attempts[index]) - 1)))
        written[index] = max(written[index], number + 1)
        log.append(attempts[index][number])
    return text, log + attempts[-1][written[-1] :]


class Client:
    """Holds the text as the contract tells a reader to; knows which events it took."""

    def __init__(self, reader: ReplyReader, text: str = "") -> None:
        self.reader = reader
        self.text = text
        self.taken: list[tuple[int, int]] = []

    def take(self, event: Event) -> Seen:
        seen = self.reader.see(event)
        if seen in (Seen.NEW, Seen.RESTART):
            self.taken.append((event["attempt"], event["sequence_number"]))
            self.text = event_text(event) if seen is Seen.RESTART else self.text + event_text(event)
        return seen


def read(log: list[Event]) -> tuple[str, bool]:
    """The rule as `delivery_model.py` has it."""
    attempt, expected, text, last = 0, 0, "", False
    for event in log:
        if last or event["attempt"] < attempt:
            continue
        if event["attempt"] > attempt:
            attempt, expected, text = event["attempt"], 0, ""
        assert event["sequence_number"] <= expected
        if event["sequence_number"] == expected:
            expected, text, last = expected + 1, text + event_text(event), is_last(event)
    return text, last


@IN_ANY_TIME
@given(drawn=logs())
def test_the_text_comes_exactly_once(drawn: tuple[str, list[Event]]) -> None:
    """No gap, no event twice, the text of the specification after every event."""
    text, log = drawn
    client = Client(ReplyReader())
    for count, event in enumerate(log, 1):
        assert client.take(event) is not Seen.GAP
        assert (client.text, client.reader.finished) == read(log[:count])
    assert (text, True) == (client.text, client.reader.finished)
    assert len(client.taken) == len(set(client.taken))
    assert sorted(client.taken) == client.taken


@IN_ANY_TIME
@given(drawn=logs(), data=st.data())
def test_a_gap_is_healed_from_the_log(drawn: tuple[str, list[Event]], data: st.DataObject) -> None:
    """Events that were not delivered are read from the log when the next one shows the gap."""
    text, log = drawn
    client = Client(ReplyReader())
    lost = data.draw(st.sets(st.integers(0, len(log) - 1)))
    for index, event in enumerate(log):
        if index in lost and index < len(log) - 1:
            continue
        if client.take(event) is Seen.GAP:
            assert Seen.GAP not in [client.take(earlier) for earlier in log[: index + 1]]
    if not client.reader.finished:  # the last event of the log may be a repetition
        for event in log:
            client.take(event)
    assert (text, True) == (client.text, client.reader.finished)


@IN_ANY_TIME
@given(drawn=logs(), data=st.data())
def test_a_reader_goes_on_where_another_stopped(
    drawn: tuple[str, list[Event]], data: st.DataObject
) -> None:
    """With the attempt and number of its last event, from the log's beginning, nothing twice."""
    text, log = drawn
    first = Client(ReplyReader())
    for event in log[: data.draw(st.integers(0, len(log)))]:
        first.take(event)
    number = first.reader.next_number - 1
    reader = ReplyReader(starting_after=number, attempt=first.reader.attempt)
    second = Client(reader, first.text)
    for event in log:
        assert second.take(event) is not Seen.GAP
    assert (text, True) == (second.text, second.reader.finished)
    assert set(first.taken).isdisjoint(second.taken)
