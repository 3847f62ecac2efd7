"""The estimate of a request's work, and the moving mean of answers' lengths."""

from typing import Any

import orjson
import pytest

from headrace.consumers.lag_work import (
    FIRST_GUESS_TOKENS,
    NO_WORK,
    WINDOW_ANSWERS,
    AnswerLengths,
    Work,
    expected_work,
    work_of,
)


@pytest.mark.parametrize(
    ("body", "work"),
    [
        ({"prompt": "x" * 40, "max_tokens": 7}, Work(10, 7)),
        ({"prompt": "x" * 41}, Work(11, 256)),
        ({"messages": [{"role": "user", "content": "x" * 8}, {"content": "y" * 8}]}, Work(4, 256)),
        ({"messages": [{"content": [{"type": "text", "text": "x" * 12}, 3]}]}, Work(3, 256)),
        ({"prompt": "", "max_tokens": 5, "max_completion_tokens": 9}, Work(0, 9)),
        ({"prompt": "", "max_tokens": "many"}, Work(0, 256)),
        ({"prompt": "", "max_tokens": True}, Work(0, 256)),
        ({"messages": ["?", None, {"content": None}]}, Work(0, 256)),
        ({"prompt": 5}, NO_WORK),
        ({}, NO_WORK),
    ],
)
def test_the_work_of_a_body(body: dict[str, Any], work: Work) -> None:
    """Characters of the prompt, whatever else stands there, and the limit of the answer."""
    assert work == work_of(orjson.dumps(body))


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff\xfe", b"[1]", b"7", b'"text"'])
def test_what_holds_no_request_is_no_work(value: bytes | None) -> None:
    """A tombstone and poison alike."""
    assert work_of(value) == NO_WORK


def test_an_answer_is_as_long_as_answers_were_but_not_longer_than_its_limit() -> None:
    """Two requests with a limit of 10, one with 1000; answers have 50 tokens."""
    assert expected_work(100, [(10, 2), (1000, 1)], 50) == 100 + 2 * 10 + 50


def test_without_history_the_first_guess_holds() -> None:
    """Events without usage tell nothing."""
    lengths = AnswerLengths()
    events: list[dict[str, Any]] = [
        {},
        {"usage": None},
        {"usage": {"completion_tokens": "9"}},
        {"error": {}},
    ]
    for event in events:
        lengths.add(event)
    assert lengths.expected_tokens == FIRST_GUESS_TOKENS


def test_the_mean_moves_with_the_newest_answers() -> None:
    """A window full of 10s, then one full of 30s."""
    lengths = AnswerLengths()
    for tokens, expected in ((10, 10), (30, 30)):
        for _ in range(WINDOW_ANSWERS):
            lengths.add({"usage": {"completion_tokens": tokens}})
        assert expected == lengths.expected_tokens
