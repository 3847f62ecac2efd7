"""Whatever bytes stand in a record, decoding gives an answer that can be sent."""

import contextlib
import json
import math
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.schemas.control import decode_control
from headrace.schemas.errors import RequestError
from headrace.schemas.event import EventWriter
from headrace.schemas.headers import (
    EventType,
    cloud_event_headers,
    header_text,
    trace_headers,
)
from headrace.schemas.keys import Keys
from headrace.schemas.request import (
    MAX_ID_CHARS,
    GenerationRequest,
    Record,
    decode_request,
    validate_request,
)
from headrace.schemas.strict_json import MAX_DEPTH, decode_object

IN_ANY_TIME = settings(deadline=None)  # the machine is shared
NAMES = [*GenerationRequest.model_fields, "role", "content", "type", "text", "schema", "action"]
any_text = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too
usable_text = st.text(min_size=1, max_size=20)
names = st.one_of(st.sampled_from(NAMES), any_text)
numbers = st.one_of(
    st.integers(), st.floats(), st.integers(-(2**70), 2**70), st.sampled_from([0, 1, -1, 2**63])
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, any_text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": usable_text}),
    min_size=1,
    max_size=3,
)
valid_bodies = st.fixed_dictionaries(
    {"messages": messages},
    optional={
        "request_id": usable_text,
        "tenant": usable_text,
        "max_tokens": st.integers(1, 10**9),
        "temperature": st.floats(0, 2),
        "stop": st.one_of(usable_text, st.lists(usable_text, max_size=4)),
        "logit_bias": st.dictionaries(st.integers(0, 10**8).map(str), st.floats(-100, 100)),
        "metadata": st.dictionaries(usable_text, st.text(max_size=20), max_size=4),
        "response_format": st.just({"type": "json_object"}),
    },
)


def as_pairs(value: Any) -> str:
    """JSON as Python writes it; NaN and lone surrogates included."""
    return json.dumps(value)


@st.composite
def mutated_bodies(draw: st.DrawFn) -> bytes:
    """A valid request with a field that holds anything, a name twice, or bytes changed."""
    text = as_pairs(draw(valid_bodies) | draw(st.dictionaries(names, json_values, max_size=2)))
    if draw(st.booleans()):
        twice = f"{as_pairs(draw(names))}:{as_pairs(draw(json_values))}"
        text = f"{text[:-1]},{twice}}}"
    data = bytearray(text.encode())
    if draw(st.booleans()):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


values = st.one_of(
    st.none(),
    st.binary(max_size=50),
    json_values.map(lambda value: as_pairs(value).encode()),
    st.text('[]{}",:\\a0', max_size=80).map(str.encode),
    mutated_bodies(),
)
keys = st.one_of(st.none(), st.binary(max_size=8), st.just(b"k" * 600), usable_text.map(str.encode))
header_values = st.one_of(st.none(), st.binary(max_size=8), usable_text.map(str.encode))
header_names = st.sampled_from(["headrace-tenant", "traceparent", "baggage", "ce_id", "x"])
headers = st.lists(st.tuples(header_names, header_values), max_size=4)


@IN_ANY_TIME
@given(value=values, key=keys, header_list=headers)
@example(value=b'[1,{"a":1,"a":2}]', key=None, header_list=[])
@example(value=b'{"request_id":"\\ud800","a":1,"a":2}', key=None, header_list=[])
@example(value=b"[" * 5000, key=None, header_list=[])
@example(value=b'{"a":' * 5000, key=b"\xff", header_list=[])
def test_decode_request_never_raises_and_its_answer_can_be_sent(
    value: bytes | None, key: bytes | None, header_list: list[tuple[str, bytes | None]]
) -> None:
    """A request or an error, names that fit in events, headers and Redis, the same each time."""
    record = Record("t", 0, 1, 2, key, value, header_list)
    found = decode_request(record)
    assert (found.request is None) == (found.error is not None)
    for name in (found.request_id, found.session_id, found.tenant):
        assert 0 < len(name) <= MAX_ID_CHARS
        name.encode("utf-8")
    assert Keys().journal(found.tenant, found.request_id).isascii()
    assert trace_headers(header_list) is not None
    if found.error is not None:
        writer = EventWriter(found.request_id, found.session_id, 1, 1, "m", "f")
        event = json.loads(writer.failed(0, found.error).value)
        assert event["id"] == found.request_id
        assert found.error.param is None or len(found.error.param) <= 256
    again = decode_request(record)
    assert (found.request_id, found.tenant, found.request, str(found.error)) == (
        again.request_id,
        again.tenant,
        again.request,
        str(again.error),
    )


@IN_ANY_TIME
@given(body=valid_bodies)
def test_a_valid_request_is_accepted(body: dict[str, Any]) -> None:
    """Under the names that it gives itself."""
    found = decode_request(Record("t", 0, 1, 2, b"s", json.dumps(body).encode(), ()))
    assert found.error is None
    assert body.get("request_id", "t-0-1") == found.request_id
    assert body.get("tenant", "default") == found.tenant


@IN_ANY_TIME
@given(value=values)
def test_what_is_decoded_can_be_written_by_any_json_library(value: bytes | None) -> None:
    """No NaN, no lone surrogate, no huge integer, no depth: orjson writes and reads it."""
    try:
        body = decode_object(value or b"")
    except RequestError:
        return
    assert body == orjson.loads(orjson.dumps(body))
    assert depth(body) <= MAX_DEPTH


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@IN_ANY_TIME
@given(value=json_values)
def test_exactly_the_clean_objects_are_decoded(value: Any) -> None:
    """Nothing that 64 bits and UTF-8 hold is refused, and nothing else is accepted."""
    try:
        found: Any = decode_object(as_pairs(value).encode())
    except RequestError:
        found = None
    clean = isinstance(value, dict) and is_clean(value)
    assert found == (value if clean else None)


def is_clean(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_clean(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return all(map(is_clean, value))
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


@IN_ANY_TIME
@given(value=json_values)
def test_validation_refuses_and_never_raises_otherwise(value: Any) -> None:
    """Also for a caller in Python that has not gone through the decoder."""
    body = value if isinstance(value, dict) else {"prompt": value}
    with contextlib.suppress(RequestError):
        assert validate_request(body)


@IN_ANY_TIME
@given(value=values, header_list=headers)
def test_decode_control_refuses_and_never_raises_otherwise(
    value: bytes | None, header_list: list[tuple[str, bytes | None]]
) -> None:
    """As for requests."""
    with contextlib.suppress(RequestError):
        assert decode_control(value or b"", header_list).session_id


@IN_ANY_TIME
@given(event_id=usable_text, subject=usable_text, time_s=st.floats(0, 4e9))
def test_headers_round_trip(event_id: str, subject: str, time_s: float) -> None:
    """What is written is read, whatever the ids hold."""
    found = cloud_event_headers(
        EventType.FAILED, event_id=event_id, source="/w", subject=subject, time_s=time_s
    )
    assert (header_text(found, "ce_id"), header_text(found, "ce_subject")) == (event_id, subject)
    assert (header_text(found, "ce_time") or "").endswith("Z")
