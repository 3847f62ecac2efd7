"""What stands in a response record is no event, or every reader takes it and says the same."""

from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.consumers.errors_http import failed_error
from headrace.consumers.grpc_wire import response_of
from headrace.consumers.log_event import decode_event
from headrace.consumers.openai_form import ChunkForm, WholeForm
from headrace.consumers.socket_frames import event_frame
from headrace.producers.client_events import Completed, Failed, read_event
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.reply import Seen, event_text, is_last
from tests.unit.consumers.doubles import completion, writer
from tests.unit.consumers.records import LogRecord

Body = dict[str, Any]
BUILD = writer("r1", "s1")
ERROR = RequestError(ErrorCode.INVALID_VALUE, "no", "temperature")
VALUES: list[bytes] = [
    BUILD.chunk(0, "a", token_ids=[1], prompt_token_ids=[2]).value,
    BUILD.chunk(3, "z", token_ids=[1], completion=completion()).value,
    BUILD.whole("whole", completion(), token_ids=[1]).value,
    BUILD.failed(1, ERROR).value,
]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.just([]),
    st.just([1, "x"]),
    st.just({}),
    st.just({"x": 1}),
)


def places(body: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in `body`, and of one that is new in each object."""
    found: list[tuple[Any, ...]] = []
    inner = body.items() if isinstance(body, dict) else enumerate(body)
    for name, value in inner:
        found.append((*path, name))
        if isinstance(value, dict | list):
            found += places(value, (*path, name))
    return [*found, (*path, "came_later")] if isinstance(body, dict) else found


def changed(body: Body, path: tuple[Any, ...], value: Any, *, gone: bool) -> Body:
    """`body` with another value at `path`, or none."""
    copy = orjson.loads(orjson.dumps(body))
    holder = copy
    for name in path[:-1]:
        holder = holder[name]
    if gone and isinstance(holder, dict):
        holder.pop(path[-1], None)
    else:
        holder[path[-1]] = value
    return dict(copy)


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """An event of ours, changed in up to three places."""
    body: Body = orjson.loads(draw(st.sampled_from(VALUES)))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(places(body)))
        body = changed(body, path, draw(JUNK), gone=draw(st.booleans()))
    return body


def read(body: Body) -> list[str] | None:
    """The text as each reader has it; None where it is no event."""
    event = decode_event(LogRecord(0, 0, b"k", orjson.dumps(body)))
    if event is None:
        return None
    frame = orjson.loads(event_frame(event)[4:] if event_frame(event)[1] == 126 else b"{}")
    assert frame in ({}, {"type": "event", "cursor": event.cursor, "event": event.event})
    message = response_of(event)
    told = read_event({"event": event.event, "cursor": event.cursor})
    assert is_last(event.event) == isinstance(told, Completed | Failed)
    texts = [event_text(event.event), told.text, message.chunk.content + message.completed.content]
    if event.event["object"] == "error":
        assert failed_error(event.event).body()
        return texts
    for chat in (True, False):
        chunks = ChunkForm(chat=chat, include_usage=True).chunks(event.event, Seen.NEW)
        choice = chunks[0]["choices"][0]
        texts.append(choice["delta"]["content"] if chat else choice["text"])
        whole = WholeForm(chat=chat)
        whole.take(event.event, Seen.NEW)
        choice = whole.body(event.event)["choices"][0]
        texts.append(choice["message"]["content"] if chat else choice["text"])
        orjson.dumps(chunks)
    return texts


def of(index: int, change: Callable[[Body], object]) -> Body:
    body: Body = orjson.loads(VALUES[index])
    change(body)
    return body


@settings(max_examples=500)
@given(bodies())
@example(of(1, lambda it: it["usage"].update(new_field=7)))
@example(of(1, lambda it: it["timings"].update(new_ms=2)))
@example(of(1, lambda it: it["usage"].update(prompt_tokens_details=None)))
@example(of(0, lambda it: it["choices"][0].update(delta={})))
@example(of(0, lambda it: it["choices"][0].update(token_ids=5)))
@example(of(1, lambda it: it.update(usage="x", timings=[1])))
@example(of(3, lambda it: it["error"].update(code=5)))
@example(of(1, lambda it: it.update(seed=2**64 - 1)))
def test_every_reader_takes_every_event(body: Body) -> None:
    """And has the same text."""
    texts = read(body)
    assert texts is None or len(set(texts)) == 1


@given(st.sampled_from(VALUES), st.data())
def test_what_came_later_is_ignored(value: bytes, data: st.DataObject) -> None:
    """Contract §1: unknown fields of any kind, anywhere."""
    body: Body = orjson.loads(value)
    path = data.draw(st.sampled_from([it for it in places(body) if it[-1] == "came_later"]))
    before = read(body)
    assert before is not None
    if "metadata" not in path:  # its names are the client's own, and its values are text
        assert read(changed(body, path, data.draw(JUNK), gone=False)) == before
