"""The one way in for strangers' JSON."""

import json

import pytest

from headrace.schemas.errors import ErrorCode, RequestError, UndecodableError
from headrace.schemas.strict_json import MAX_DEPTH, decode_object, readable_id


def refused(data: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_object(data)
    return caught.value


NO_OBJECT = [
    (b"", "empty: a JSON object is needed"),
    (b"null", "a JSON object is needed, not null"),
    (b"[]", "a JSON object is needed, not an array"),
    (b'"x"', "a JSON object is needed, not a string"),
    (b"true", "a JSON object is needed, not true"),
    (b"12", "a JSON object is needed, not 12"),
    (b"1" * 5000, "a JSON object is needed, not a number out of range"),
    (b"NaN", "a JSON object is needed, not a number out of range"),
    (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
    (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
    (b'\xef\xbb\xbf{"a":1}', "begins with a byte order mark, which JSON does not allow"),
    (b'{"a":1,"a":2}', "a name stands twice in one object"),
    (b'{"a":[{"b":1,"\\u0062":2}]}', "a name stands twice in one object"),
    (b"[" * 5000, "nested deeper than 32 levels"),
    (b'{"a":' * 5000, "nested deeper than 32 levels"),
    (b"[" * 5000 + b"]" * 5000, "nested deeper than 32 levels"),
]


@pytest.mark.parametrize(("data", "message"), NO_OBJECT)
def test_what_is_no_object_is_undecodable(data: bytes, message: str) -> None:
    """Each says why in its own words."""
    error = refused(data)
    assert isinstance(error, UndecodableError)
    assert (ErrorCode.INVALID_JSON, message, None) == (error.code, error.message, error.param)


@pytest.mark.parametrize(
    "data", [b"{", b"{'a':1}", b'{"a":1}{', b'{"a":01}', b'{"a":"\n"}', b'{"a":1,}', b"{a:1}"]
)
def test_what_is_no_json_is_undecodable(data: bytes) -> None:
    """RFC 8259 and nothing beside it."""
    assert refused(data).message.startswith("not JSON: ")


LEAVES = [
    (b'{"a":NaN}', ErrorCode.INVALID_VALUE, "a"),
    (b'{"a":[1,{"b":-Infinity}]}', ErrorCode.INVALID_VALUE, "a.1.b"),
    (b'{"a":1e999}', ErrorCode.INVALID_VALUE, "a"),
    (b'{"a":' + b"9" * 5000 + b"}", ErrorCode.INVALID_VALUE, "a"),
    (b'{"a":18446744073709551616}', ErrorCode.INVALID_VALUE, "a"),
    (b'{"a":-9223372036854775809}', ErrorCode.INVALID_VALUE, "a"),
    (b'{"a":["x","\\ud83d"]}', ErrorCode.INVALID_TEXT, "a.1"),
    (b'{"a":"\\ude00\\ud83d"}', ErrorCode.INVALID_TEXT, "a"),
    (b'{"a":{"\\ud800":1}}', ErrorCode.INVALID_TEXT, "a"),
    (b'{"\\ud800":1}', ErrorCode.INVALID_TEXT, None),
    (b'{"a":NaN,"b":"\\ud800"}', ErrorCode.INVALID_VALUE, "a"),
]


@pytest.mark.parametrize(("data", "code", "param"), LEAVES)
def test_a_bad_leaf_is_refused_with_its_path(
    data: bytes, code: ErrorCode, param: str | None
) -> None:
    """The first one in the order of the text."""
    error = refused(data)
    assert (code, param) == (error.code, error.param)
    assert not isinstance(error, UndecodableError)


def test_text_beyond_the_basic_plane_is_text() -> None:
    """A whole surrogate pair, as an escape or as UTF-8, is one character."""
    assert decode_object('{"a":"\\ud83d\\ude00😀"}'.encode()) == {"a": "😀😀"}


def test_the_limits_of_integers_are_within() -> None:
    """Whatever 64 bits hold, signed or not, is kept exactly."""
    data = {"low": -(2**63), "high": 2**64 - 1}
    assert data == decode_object(json.dumps(data).encode())


def nested(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)


def test_the_deepest_allowed_nesting() -> None:
    """MAX_DEPTH levels pass, one more does not."""
    decode_object(nested(MAX_DEPTH))
    assert "nested deeper" in refused(nested(MAX_DEPTH + 1)).message


def test_brackets_in_strings_are_no_nesting() -> None:
    """Source code in a prompt is full of them."""
    data = {"prompt": '[{"\\' * 100, "x": [[] for _ in range(50)]}
    assert data == decode_object(json.dumps(data).encode())


def test_many_brackets_side_by_side_are_no_nesting() -> None:
    """Depth counts, not number."""
    decode_object(b'{"a":[' + b"[]," * 100 + b"[]]}")


@pytest.mark.timeout(5)
def test_unclosed_quotes_take_linear_time() -> None:
    """Regression: looking for the end of a string from each of its quotes was quadratic."""
    refused(b"[" * 40 + b'"' + b'\\"' * 500_000)


IDS = [
    (b'{"request_id":"r","a":1,"a":2}', "r"),
    (b'{"request_id":"r"}', "r"),
    (b'{"request_id":"r","request_id":"r"}', None),
    (b'{"a":{"request_id":"r"},"b":1,"b":1}', None),
    (b'{"request_id":["r"]}', None),
    (b'[["request_id","r"]]', None),
    (b"[1,2,3]", None),
    (b"\xff", None),
    (b"", None),
]


@pytest.mark.parametrize(("data", "expected"), IDS)
def test_the_id_of_a_refused_object(data: bytes, expected: str | None) -> None:
    """Only a string that stands once at the top of an object."""
    assert expected == readable_id(data)
