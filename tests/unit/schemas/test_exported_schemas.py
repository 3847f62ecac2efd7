"""The JSON Schemas say what the code does."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headrace.schemas import json_schema
from headrace.schemas.control import decode_control
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import FINISH_REASONS, Completion, Event, EventWriter, Timings, Usage
from headrace.schemas.request import validate_request

SCHEMAS = json_schema.schemas()
WRITER = EventWriter("r", "s", 7, 1796000000, "m", "f")
FAILURE = RequestError(ErrorCode.EXPIRED, "late", None)


def valid(name: str, value: Any) -> bool:
    return bool(Draft202012Validator(SCHEMAS[name]).is_valid(value))


def done(reason: str) -> Completion:
    return Completion(reason, Usage(1, 2), Timings(1), 2**63 - 1, {"k": "v"})


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema_of_2020_12(name: str) -> None:
    """By the meta-schema, and so declared."""
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"


EVENTS = [
    ("chunk", WRITER.chunk(0, "a")),
    ("chunk", WRITER.chunk(0, "a", token_ids=[1], prompt_token_ids=[2])),
    ("chunk", WRITER.chunk(3, "é😀", token_ids=[])),
    *[("completed", WRITER.chunk(3, "", completion=done(reason))) for reason in FINISH_REASONS],
    ("completed", WRITER.chunk(0, "a", completion=done("stop"), token_ids=[1])),
    *[("completed", WRITER.whole("a", done(reason))) for reason in FINISH_REASONS],
    ("completed", WRITER.whole("", done("stop"), token_ids=[1], prompt_token_ids=[2])),
    ("failed", WRITER.failed(0, FAILURE)),
    *[("failed", WRITER.failed(5, RequestError(code, "m", "p.0"))) for code in ErrorCode],
]


@pytest.mark.parametrize(("name", "event"), EVENTS)
def test_an_event_is_valid_by_its_schema_only(name: str, event: Event) -> None:
    """Its headers' type is the schema's title."""
    value = json.loads(event.value)
    assert [name] == [other for other in ("chunk", "completed", "failed") if valid(other, value)]
    assert SCHEMAS[name]["title"] == event.kind.value


@pytest.mark.parametrize(("name", "event"), EVENTS)
def test_no_field_of_an_event_is_undescribed_or_needless(name: str, event: Event) -> None:
    """Each field that is always written is required, so a lost one is seen."""
    value = json.loads(event.value)
    for field in value:
        without = {other: item for other, item in value.items() if other != field}
        assert valid(name, without) == (field == "prompt_token_ids")


MESSAGES = [{"role": "user", "content": "hi"}]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 2.5, -2.5, 101, 2**63, 2**63 - 1, "", "x", "text", "auto",
    "append", "x" * 257, "x" * 513, [], [""], ["x"], [1], [None], ["x"] * 5, {}, {"5": 1},
    {"05": 1}, {"AI": 1}, {"5": 101}, {"k": "v"}, {"k" * 65: "v"}, {"k": "v" * 513},
    {str(i): "v" for i in range(17)}, {"type": "text"}, {"type": None}, {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {"schema": {}}}, {"json_schema": {"schema": {}}},
    {"type": "json_schema", "json_schema": {"name": None, "schema": {"a": None}}},
    {"type": "json_object", "json_schema": None}, MESSAGES, [{"role": "user"}],
    [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    [{"role": "user", "content": [{"type": "image"}]}],
]  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS["request"]["properties"])
def test_the_request_schema_allows_what_the_decoder_allows(name: str) -> None:
    """Every field with many values, in a chat and in a completion."""
    for value in VALUES:
        for rest in ({"messages": MESSAGES}, {"prompt": "x"}, {}):
            assert accepts(rest | {name: value}) == valid("request", rest | {name: value})


def accepts(body: dict[str, Any]) -> bool:
    try:
        validate_request(body)
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("name", ["action", "request_id", "session_id", "tenant", "other"])
@pytest.mark.parametrize("action", ["cancel", "delete_session", "x", None])
def test_the_control_schema_allows_what_the_decoder_allows(name: str, action: str | None) -> None:
    """Each field absent, null, empty, a string, too long, a number."""
    full = {"action": action, "request_id": "r", "session_id": "s"}
    absent: dict[str, Any] = {field: value for field, value in full.items() if field != name}
    odd: list[Any] = [None, "", "x", "x" * 513, 3, []]
    for body in [absent, *(full | {name: value} for value in odd)]:
        try:
            decode_control(json.dumps(body).encode())
        except RequestError:
            assert not valid("control", body)
        else:
            assert valid("control", body)
