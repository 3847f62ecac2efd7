"""Client libraries that say the same thing again and again while Kafka is away."""

import logging

from headrace.deploy.logging import REPEAT_INTERVAL_S, NotAgain


def record(name: str, text: str, at_s: float, *args: object) -> logging.LogRecord:
    """A warning of `name` at a time."""
    made = logging.LogRecord(name, logging.WARNING, "", 0, text, args, None)
    made.created = at_s
    return made


def test_what_a_client_library_repeats_is_written_once_and_counted() -> None:
    """Whatever node it is about; another text is written."""
    only_once = NotAgain()
    texts = []
    for number in range(100):
        for text in ("Unable connect to node with id %s", "Unable to update metadata from %s"):
            one = record("aiokafka", text, 1000 + number * 0.1, number)
            if only_once.filter(one):
                texts.append(one.getMessage())
    assert texts == ["Unable connect to node with id 0", "Unable to update metadata from 0"]
    later = record("aiokafka", "Unable connect to node with id %s", 1000 + REPEAT_INTERVAL_S, 7)
    assert only_once.filter(later)
    assert later.getMessage() == "Unable connect to node with id 7 (and 99 times since)"


def test_our_own_lines_are_all_written() -> None:
    """Each says something of its own."""
    only_once = NotAgain()
    assert all(only_once.filter(record("headrace.streams", "drained", 5.0)) for _ in range(3))
