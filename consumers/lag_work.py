"""How much work a request is likely to be, from its body, and how long answers were lately.

Plain functions and state. An estimate: the worker alone knows the tokenizer, what it has in its
caches, and which stored conversation a request goes on with (none of which is counted here).
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from headrace.schemas.reply import usage_of
from headrace.schemas.request import GenerationRequest

CHARS_PER_TOKEN = 4
"""English text in today's vocabularies of 50,000 to 150,000 tokens; other texts have fewer."""

DEFAULT_MAX_TOKENS: int = GenerationRequest.model_fields["max_tokens"].default

FIRST_GUESS_TOKENS = 256
"""Length of an answer before any has been seen: what `max_tokens` is by default."""

WINDOW_ANSWERS = 256
"""The mean is over so many: it follows a change of traffic within minutes, single ones move it by
less than 1 %.
"""


class Work(NamedTuple):
    """What one request asks for, in tokens."""

    prompt_tokens: int
    max_tokens: int
    """The answer is no longer than this."""


NO_WORK = Work(0, 0)
"""A tombstone, a control record, or a record that holds no request."""


def work_of(value: bytes | None) -> Work:
    """The work in a request record's value; NO_WORK where no request can be read."""
    try:
        body = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return NO_WORK
    return work_in(body) if isinstance(body, dict) else NO_WORK


def work_in(body: dict[str, Any]) -> Work:
    """The work that a request's body asks for; NO_WORK where it is none."""
    num_chars = _prompt_chars(body)
    if num_chars is None:
        return NO_WORK
    return Work(-(-num_chars // CHARS_PER_TOKEN), _token_limit(body))


class AnswerLengths:
    """A moving mean of how many tokens answers have."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=WINDOW_ANSWERS)
        self._sum = 0

    @property
    def expected_tokens(self) -> float:
        """Of the next answer."""
        if not self._lengths:
            return float(FIRST_GUESS_TOKENS)
        return self._sum / len(self._lengths)

    def add(self, event: dict[str, Any]) -> None:
        """Take a response event; only a `completed` one says how long its answer was."""
        length = usage_of(event, "completion_tokens")
        if length is None:
            return
        if len(self._lengths) == WINDOW_ANSWERS:
            self._sum -= self._lengths[0]
        self._lengths.append(length)
        self._sum += length


def expected_work(prompt_tokens: int, limits: Iterable[tuple[int, int]], expected: float) -> float:
    """Tokens of requests with `prompt_tokens` in all and so many (second) of each limit (first)."""
    return prompt_tokens + sum(count * min(limit, expected) for limit, count in limits)


def _prompt_chars(body: dict[str, Any]) -> int | None:
    prompt, messages = body.get("prompt"), body.get("messages")
    if isinstance(prompt, str):
        return len(prompt)
    if not isinstance(messages, list):
        return None
    contents = [one.get("content") for one in messages if isinstance(one, dict)]
    return sum(_content_chars(content) for content in contents)


def _content_chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return sum(len(text) for text in texts if isinstance(text, str))


def _token_limit(body: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):  # OpenAI's newer name wins
        limit = body.get(name)
        if type(limit) is int and limit > 0:
            return limit
    return DEFAULT_MAX_TOKENS
