"""Events as OpenAI's clients expect them, and calls as they send them."""

from typing import Any

import orjson
import pytest

from headrace.consumers.openai_form import ChunkForm, WholeForm
from headrace.consumers.sse import sse_data
from headrace.consumers.submission import one_prompt, prepare
from headrace.schemas.errors import RequestError
from headrace.schemas.reply import Seen
from tests.unit.consumers.doubles import answer

MESSAGES = [{"role": "user", "content": "hi"}]


def events(words: list[str], *, attempt: int = 1) -> list[dict[str, Any]]:
    return [orjson.loads(value) for value in answer("r1", "s1", words, attempt=attempt)]


def test_a_restart_that_says_the_same_is_not_seen() -> None:
    """The text so far comes again in one piece: nothing of it is sent twice."""
    form = ChunkForm(chat=True, include_usage=False)
    first, again = events(["He", "llo", "!"]), events(["Hello", "!"], attempt=2)
    sent = [form.chunks(it, Seen.NEW)[0] for it in first[:2]]
    sent += form.chunks(again[0], Seen.RESTART) + form.chunks(again[1], Seen.NEW)
    assert [it["choices"][0]["delta"]["content"] for it in sent] == ["He", "llo", "", "!"]


def test_a_restart_that_differs_is_an_error() -> None:
    """These clients cannot forget, and a mixed text would be a lie."""
    form = ChunkForm(chat=True, include_usage=False)
    form.chunks(events(["Hello", "!"])[0], Seen.NEW)
    with pytest.raises(RequestError):
        form.chunks(events(["Other", "!"], attempt=2)[0], Seen.RESTART)


def test_a_whole_answer_is_made_of_chunks_too() -> None:
    """A repeated id may have been streamed the first time; a restart begins the text anew."""
    form = WholeForm(chat=True)
    form.take(events(["old"])[0], Seen.NEW)
    for event, seen in zip(events(["He", "llo"]), (Seen.RESTART, Seen.NEW), strict=True):
        form.take(event, seen)
    body = form.body(event)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Hello"


def test_events_are_shared_and_not_changed() -> None:
    """Other readers hold the same objects."""
    (event,) = events(["x"])
    before = orjson.dumps(event)
    ChunkForm(chat=False, include_usage=True).chunks(event, Seen.NEW)
    form = WholeForm(chat=False)
    form.take(event, Seen.NEW)
    form.body(event)
    assert orjson.dumps(event) == before


def test_ids_and_defaults_of_a_call() -> None:
    """A call without a session is a conversation of its own; the tenant is ours to say."""
    call = prepare({"messages": MESSAGES, "tenant": "evil", "type": "generate"}, tenant="acme")
    assert call.body["tenant"] == "acme"
    assert call.body["context"] == "replace"
    assert call.session_id == call.request_id == call.body["session_id"]
    assert not call.may_exist
    assert "type" not in call.body
    named = prepare({"messages": MESSAGES, "session_id": "s"}, tenant="t", idempotency_key="k")
    assert (named.request_id, named.session_id, named.may_exist) == ("k", "s", True)
    assert "context" not in named.body


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [[1, 2]], [1]])
def test_several_prompts_are_refused(prompt: list[Any]) -> None:
    """One request, one answer."""
    with pytest.raises(RequestError):
        one_prompt({"prompt": prompt})
    assert one_prompt({"prompt": ["a"]}) == {"prompt": "a"}


def test_an_sse_message_is_one_line() -> None:
    """Line breaks in text stay inside the JSON."""
    assert sse_data({"a": "x\n\ny"}, event_id="c1.0.1") == b'id: c1.0.1\ndata: {"a":"x\\n\\ny"}\n\n'
