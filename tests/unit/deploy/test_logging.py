"""What is written of what client libraries repeat, and nothing of keys in URLs."""

import logging

import pytest

from headrace.deploy.logging import REPEAT_INTERVAL_S, NotAgain, mask_secrets


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


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("?api_key=secret", "?api_key=***"),
        ("?a=1&api_key=secret&b=2", "?a=1&api_key=***&b=2"),
        ("?api%5Fkey=secret", "?api%5Fkey=***"),
        ("?%61pi_key=secret", "?%61pi_key=***"),
        ('?api_key=sec"ret', "?api_key=***"),
        ("?session_id=s1&starting_after=3", "?session_id=s1&starting_after=3"),
    ],
)
def test_a_key_in_a_url_is_masked_however_its_name_is_written(query: str, shown: str) -> None:
    """The server decodes `%5F`; the access log shows what was sent."""
    line = '127.0.0.1:5 - "GET /v1/stream{} HTTP/1.1" 101'
    masked = mask_secrets(None, "info", {"event": line.format(query)})
    assert masked["event"] == line.format(shown)
