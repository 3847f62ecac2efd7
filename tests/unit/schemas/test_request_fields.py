"""Every field of contract §2: its bounds, its path in a refusal, and what the refusal says."""

import json
import re
from typing import Any

import pytest

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request import GenerationRequest, validate_request
from headrace.schemas.strict_json import decode_object

MESSAGES = [{"role": "user", "content": "hi"}]


def decode(fields: dict[str, Any]) -> GenerationRequest:
    return validate_request(decode_object(json.dumps({"messages": MESSAGES} | fields).encode()))


def refused(fields: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(fields)
    return caught.value


ACCEPTED: dict[str, list[Any]] = {
    "request_id": ["r", "x" * 512, "é 😀"],
    "session_id": ["s"],
    "context": ["append", "replace"],
    "turn": [0, 7],
    "truncation": ["disabled", "auto"],
    "model": ["m", ""],
    "max_tokens": [1, 10**9, 2**63 - 1],
    "max_completion_tokens": [1, 10**9],
    "temperature": [0, 1e-9, 1, 2, 2.0],
    "top_p": [1e-9, 1, 0.5],
    "min_p": [0, 1, 0.5],
    "top_k": [-1, 0, 1, 10**9],
    "seed": [-(2**63), 2**63 - 1, 0],
    "stop_token_ids": [[], [0, 5]],
    "presence_penalty": [-2, 2, 0.5],
    "frequency_penalty": [-2, 2, 0.5],
    "repetition_penalty": [1e-9, 10],
    "logit_bias": [{}, {"0": -100, "49151": 100.0}],
    "ignore_eos": [True, False],
    "stream": [True, False],
    "return_token_ids": [True, False],
    "priority": [-100, 100],
    "ttl_ms": [1, 10**12],
    "tenant": ["t", "x" * 512],
    "metadata": [{}, {"k" * 64: "v" * 512}, {str(i): "" for i in range(16)}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in ACCEPTED.items() for value in values]
)
def test_a_value_within_the_bounds_is_kept_as_it_is(name: str, value: Any) -> None:
    """What the contract allows arrives unchanged."""
    assert value == getattr(decode({name: value}), name)


NO_INTEGERS = [True, "10", 2.5, 10.0, [], {}]
NO_NUMBERS = [True, "1", [], {}]
NO_STRINGS = [True, 1, 2.5, [], {}]
NO_BOOLEANS = [0, 1, "true", [], {}]
REFUSED: dict[str, list[Any]] = {
    "request_id": [*NO_STRINGS, "", "x" * 513],
    "session_id": [*NO_STRINGS, "", "x" * 513],
    "messages": [{}, "hi", 3, True, []],
    "prompt": NO_STRINGS,
    "context": [*NO_STRINGS, "", "Append"],
    "turn": [*NO_INTEGERS, -1, 2**63],
    "truncation": [*NO_STRINGS, "on"],
    "model": NO_STRINGS,
    "max_tokens": [*NO_INTEGERS, 0, -5, 2**63],
    "max_completion_tokens": [*NO_INTEGERS, 0, -5, 2**63],
    "temperature": [*NO_NUMBERS, -1, 2.1, 1e15, "hot"],
    "top_p": [*NO_NUMBERS, 0, -0.1, 1.5],
    "min_p": [*NO_NUMBERS, -0.1, 1.5],
    "top_k": [*NO_INTEGERS, -2, 2**63],
    "seed": [*NO_INTEGERS, -(2**63) - 1, 2**63],
    "stop": [3, True, {}, "", "x" * 10_000, ["a"] * 100],
    "stop_token_ids": [3, "3", {}],
    "presence_penalty": [*NO_NUMBERS, -2.1, 2.1],
    "frequency_penalty": [*NO_NUMBERS, -2.1, 2.1],
    "repetition_penalty": [*NO_NUMBERS, 0, -1, 10.5],
    "logit_bias": [[], "5", 5],
    "ignore_eos": NO_BOOLEANS,
    "response_format": ["json", [], {"type": "json_schema"}],
    "stream": NO_BOOLEANS,
    "return_token_ids": NO_BOOLEANS,
    "priority": [*NO_INTEGERS, -101, 101],
    "ttl_ms": [*NO_INTEGERS, 0, -1, 2**63],
    "tenant": [*NO_STRINGS, "", "x" * 513],
    "metadata": [[], "x", {str(i): "" for i in range(17)}],
}
JARGON = re.compile(r"Input should|Value error|pydantic|\bdict\b|\blist\b|TextPart|instance")


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_value_out_of_bounds_is_refused_under_its_name(name: str, value: Any) -> None:
    """`invalid_value` with the field as `param` and words that are for people."""
    error = refused({name: value})
    assert (ErrorCode.INVALID_VALUE, name) == (error.code, error.param)
    assert not JARGON.search(error.message)


PATHS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": [{}]}, "messages.0.role", "is required"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "is required"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "is required"),
    (
        {"messages": [*MESSAGES, {"role": "user", "content": 3}]},
        "messages.1.content",
        "must be a string or an array of text parts",
    ),
    ({"messages": [3]}, "messages.0", "must be an object, not 3"),
    (
        {"messages": [{"role": "robot", "content": ""}]},
        "messages.0.role",
        "must be 'system', 'developer', 'user', 'assistant' or 'tool'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]},
        "messages.0.content.1",
        "must be an object, not a string",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content.0.type",
        "must be 'text'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages.0.content.0.text",
        "is required",
    ),
    ({"temperature": 2.1}, "temperature", "must be at most 2, not 2.1"),
    ({"temperature": True}, "temperature", "must be a number, not true"),
    ({"top_p": 0}, "top_p", "must be greater than 0, not 0"),
    ({"max_tokens": 0}, "max_tokens", "must be at least 1, not 0"),
    ({"max_tokens": "10"}, "max_tokens", "must be an integer, not a string"),
    ({"max_tokens": 2.5}, "max_tokens", "must be an integer, not 2.5"),
    ({"stop": ""}, "stop", "must have at least 1 character(s)"),
    ({"stop": ["a", ""]}, "stop.1", "must have at least 1 character(s)"),
    ({"stop": ["a", "b" * 257]}, "stop.1", "must have at most 256 characters"),
    ({"stop": ["a"] * 5}, "stop", "must have at most 4 items"),
    ({"stop": [1]}, "stop.0", "must be a string, not 1"),
    ({"stop": [None]}, "stop.0", "must be a string, not null"),
    ({"stop_token_ids": [5, -1]}, "stop_token_ids.1", "must be at least 0, not -1"),
    ({"stop_token_ids": [True]}, "stop_token_ids.0", "must be an integer, not true"),
    (
        {"logit_bias": {"AI": 1}},
        "logit_bias.AI",
        "the name must be a token id: an integer in decimal digits",
    ),
    ({"logit_bias": {"5": 100.5}}, "logit_bias.5", "must be at most 100, not 100.5"),
    ({"logit_bias": {"5": None}}, "logit_bias.5", "must be a number, not null"),
    ({"metadata": {"a": 1}}, "metadata.a", "must be a string, not 1"),
    ({"metadata": {"k" * 65: ""}}, "metadata." + "k" * 65, "must have at most 64 characters"),
    (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "must be 'text', 'json_object' or 'json_schema'",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
        "is required",
    ),
    (
        {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        "response_format",
        "json_schema is needed with type 'json_schema', and only then",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        "response_format.json_schema.schema",
        "must be an object, not true",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
        "response_format.json_schema.strict",
        "must be true or false, not 1",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"enum": list(range(1_001))}},
            }
        },
        "response_format.json_schema.schema",
        "may list at most 1000 things in one place",
    ),
]


@pytest.mark.parametrize(("fields", "param", "message"), PATHS)
def test_a_refusal_names_the_exact_place(fields: dict[str, Any], param: str, message: str) -> None:
    """The path has places of the body only, and the message says what is allowed there."""
    error = refused(fields)
    assert (ErrorCode.INVALID_VALUE, param, message) == (error.code, error.param, error.message)


@pytest.mark.parametrize("name", ["٣", "03", "-1", " 3", "3\n", "", "1" * 10])
def test_a_token_id_has_one_spelling(name: str) -> None:
    """Regression: other alphabets' digits and leading zeros gave one token two biases."""
    assert refused({"logit_bias": {name: 1}}).message.startswith("the name must be a token id")


@pytest.mark.parametrize("name", [*REFUSED, "response_format"])
def test_null_is_absent(name: str) -> None:
    """A null field means its default."""
    other = {"prompt": "x", "messages": None} if name == "messages" else {}
    plain = {"prompt": "x", "messages": None} if name == "messages" else {}
    assert decode(plain) == decode({name: None} | other)


def test_null_is_absent_in_nested_objects_too() -> None:
    """`response_format.type: null` is the default kind."""
    assert decode({}) == decode({"response_format": {"type": None, "json_schema": None}})


def test_the_defaults_are_the_contracts() -> None:
    """The smallest request of §2 has the defaults of its table."""
    expected = {
        "truncation": "disabled", "token_limit": 256, "temperature": 1.0, "top_p": 1.0,
        "min_p": 0.0, "top_k": 0, "seed": None, "stop": [], "stop_token_ids": [],
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "logit_bias": {}, "ignore_eos": False, "stream": True, "return_token_ids": False,
        "priority": 0, "ttl_ms": None, "metadata": {}, "context": None, "turn": None,
        "model": None, "tenant": None, "request_id": None, "session_id": None,
    }  # fmt: skip
    found = decode({})
    assert expected == {name: getattr(found, name) for name in expected}
    assert found.response_format.type == "text"


def test_unknown_fields_are_ignored() -> None:
    """A field of tomorrow does not break a worker of today."""
    assert decode({}) == decode({"n": 3, "tools": [None], "user": {"a": 1}})


def test_the_newer_name_of_max_tokens_wins() -> None:
    """`max_completion_tokens` is OpenAI's newer name of the same limit."""
    assert decode({"max_tokens": 5, "max_completion_tokens": 7}).token_limit == 7


def test_one_stop_string_is_a_list_of_one() -> None:
    """OpenAI allows both forms; null and an empty list are none."""
    assert decode({"stop": "END"}).stop == ["END"]
    assert decode({"stop": None}).stop == decode({"stop": []}).stop == []


@pytest.mark.parametrize("fields", [{"messages": None}, {"prompt": "x"}])
def test_exactly_one_of_messages_and_prompt(fields: dict[str, Any]) -> None:
    """Neither and both are refused."""
    error = refused(fields)
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, "messages")


def test_message_text_joins_its_parts() -> None:
    """A list of text parts is the same text as one string."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = decode({"messages": [{"role": "user", "content": parts}]}).messages
    assert messages is not None
    assert messages[0].text == "ab"


def test_odd_conversations_are_text_like_any_other() -> None:
    """Only system, empty content, assistant last: the model may answer them."""
    for role in ("system", "developer", "assistant", "tool"):
        assert decode({"messages": [{"role": role, "content": ""}]}).messages is not None


def test_response_format_kinds() -> None:
    """Each kind of the OpenAI API, the schema where it belongs."""
    assert decode({"response_format": {"type": "json_object"}}).response_format.json_schema is None
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    found = decode({"response_format": wanted}).response_format.json_schema
    assert found is not None
    assert found.schema_ == {"type": "object"}


def test_the_schema_of_an_answer_is_kept_as_it_came() -> None:
    """The order of its properties is the order in which they are written; null is a value there."""
    schema = {"properties": {"b": {"const": None}, "a": {"type": "number", "minimum": 0.5}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": None, "schema": schema}}
    text = '{"properties":{"b":{"const":null},"a":{"type":"number","minimum":0.5}}}'
    assert decode({"response_format": wanted}).response_format.schema_text == text
    anything = decode({"response_format": {"type": "json_object"}}).response_format
    assert anything.schema_text == '{"type":"object"}'
    assert decode({}).response_format.schema_text is None


def test_a_path_is_bounded() -> None:
    """A refusal that quotes a megabyte of a client's name could not be sent."""
    param = refused({"metadata": {"k" * 100_000: ""}}).param
    assert param is not None
    assert len(param) <= 256


def test_python_callers_get_a_refusal_for_numbers_that_cannot_be_printed() -> None:
    """Python will not print an integer of 5,000 digits; the refusal does not try."""
    with pytest.raises(RequestError) as caught:
        validate_request({"prompt": "x", "max_tokens": 10**5000})
    assert caught.value.param == "max_tokens"
