"""What `decode_request` makes of a record: its names, its tenant, its session, its error."""

import json
from typing import Any

import pytest

from headrace.schemas.errors import ErrorCode, UndecodableError
from headrace.schemas.headers import Headers
from headrace.schemas.request import DecodedRequest, Record, decode_request

PROMPT = {"prompt": "x"}
DEFAULT_ID = "headrace.requests-3-14"


def decode(
    body: dict[str, Any] | bytes | None, key: bytes | None = None, headers: Headers = ()
) -> DecodedRequest:
    value = json.dumps(body).encode() if isinstance(body, dict) else body
    return decode_request(Record("headrace.requests", 3, 14, 0, key, value, headers))


def code(decoded: DecodedRequest) -> ErrorCode | None:
    return decoded.error.code if decoded.error else None


def test_a_keyless_record_gets_its_place_in_the_log_as_id_and_session() -> None:
    """The smallest request: `<topic>-<partition>-<offset>`."""
    found = decode(PROMPT)
    assert (
        found.request_id,
        found.default_id,
        found.session_id,
        found.named_session,
    ) == (DEFAULT_ID, True, DEFAULT_ID, False)


def test_the_session_is_the_key_else_the_request_id() -> None:
    """In this order; only a key names a session."""
    keyed, named = decode(PROMPT | {"request_id": "r"}, b"s"), decode(PROMPT | {"request_id": "r"})
    assert (keyed.session_id, keyed.named_session) == ("s", True)
    assert (named.session_id, named.named_session) == ("r", False)


LONG = b"k" * 513
SESSIONS: list[tuple[bytes | None, str | None, ErrorCode | None, str]] = [
    (None, None, None, "r"),
    (b"", None, None, "r"),
    (b"s", None, None, "s"),
    (b"s", "s", None, "s"),
    ("é".encode(), "é", None, "é"),
    (None, "s", ErrorCode.SESSION_KEY_MISMATCH, "r"),
    (b"", "s", ErrorCode.SESSION_KEY_MISMATCH, "r"),
    (b"other", "s", ErrorCode.SESSION_KEY_MISMATCH, "other"),
    (b"\xff", "s", ErrorCode.SESSION_KEY_MISMATCH, "r"),
    (LONG, "s", ErrorCode.SESSION_KEY_MISMATCH, "r"),
    (b"\xff", None, ErrorCode.INVALID_TEXT, "r"),
    (b"\xed\xa0\x80", None, ErrorCode.INVALID_TEXT, "r"),
    (LONG, None, ErrorCode.INVALID_TEXT, "r"),
]


@pytest.mark.parametrize(("key", "session_id", "expected", "session"), SESSIONS)
def test_the_session_must_equal_the_key(
    key: bytes | None, session_id: str | None, expected: ErrorCode | None, session: str
) -> None:
    """All combinations of key and field; a refusal is under `session_id`."""
    found = decode(PROMPT | {"session_id": session_id, "request_id": "r"}, key)
    assert expected == code(found)
    assert found.error is None or found.error.param == "session_id"
    assert (found.request is None) == (found.error is not None)
    assert (found.request_id, found.session_id) == ("r", session)


TENANTS: list[tuple[Any, Headers, str]] = [
    (None, (), "default"),
    ("field", (("headrace-tenant", b"header"),), "field"),
    (None, (("headrace-tenant", b"header"),), "header"),
    (None, (("headrace-tenant", b"\xff"),), "default"),
    (None, (("headrace-tenant", None),), "default"),
    (None, (("headrace-tenant", b""),), "default"),
    (None, (("headrace-tenant", b"x" * 513),), "default"),
    (None, (("headrace-tenant", b"good"), ("headrace-tenant", b"\xff")), "good"),
    (None, (("headrace-tenant", b"old"), ("headrace-tenant", b"new")), "new"),
]


@pytest.mark.parametrize(("field", "headers", "expected"), TENANTS)
def test_the_tenant_is_the_field_else_the_header_else_the_default(
    field: Any, headers: Headers, expected: str
) -> None:
    """A broken header is no header."""
    found = decode(PROMPT | {"tenant": field}, headers=headers)
    assert (expected, None) == (found.tenant, found.error)


READABLE = [
    b'{"request_id":"r","tenant":"t","temperature":NaN}',
    b'{"request_id":"r","tenant":"t","temperature":1e999}',
    b'{"request_id":"r","tenant":"t","max_tokens":' + b"1" * 5000 + b"}",
    b'{"request_id":"r","tenant":"t","max_tokens":0,"prompt":"x"}',
    b'{"request_id":"r","tenant":"t","prompt":"\\ud800"}',
    b'{"request_id":"r","tenant":"t","a":1,"a":2}',
    b'{"request_id":"r","tenant":"t","metadata":{"a":1,"a":2}}',
    b'{"x":' + b"[" * 5000 + b"]" * 5000 + b',"request_id":"r","tenant":"t"}',
    b'{"request_id":"r","tenant":"t","x":' + b'{"y":' * 40 + b"0" + b"}" * 41,
]


@pytest.mark.parametrize("value", READABLE)
def test_a_refused_record_keeps_the_names_that_can_be_read(value: bytes) -> None:
    """Its failed event must reach the client that waits for it."""
    found = decode(value)
    assert found.error is not None
    assert (found.request_id, found.default_id, found.tenant) == ("r", False, "t")


UNREADABLE = [
    b'{"request_id":"r","request_id":"q","prompt":"x"}',
    b'{"request_id":"\\ud800","a":1,"a":2}',
    b'{"request_id":"' + b"x" * 600 + b'","a":1,"a":2}',
    b'{"request_id":"","a":1,"a":2}',
    b'{"request_id":3,"prompt":"x"}',
    b'{"request_id":"\\ud800","prompt":"x"}',
    b'{"request_id":"' + b"x" * 513 + b'","prompt":"x"}',
    b'[["request_id","r"],{"a":1,"a":2}]',
    b'{"request_id":"r"',
]


@pytest.mark.parametrize("value", UNREADABLE)
def test_an_id_that_can_name_nothing_gives_way_to_the_default(value: bytes) -> None:
    """Regression: half a surrogate pair as the id made the failed event unwritable."""
    found = decode(value)
    assert found.error is not None
    assert (found.request_id, found.default_id) == (DEFAULT_ID, True)


@pytest.mark.parametrize(
    "value",
    [b'[1,{"a":1,"a":2}]', b'[{"a":1,"a":2}]', b'[{"a":1,"a":2,"b":3}]', b'[[1,{"a":1,"a":2}]]'],
)
def test_an_array_with_a_duplicate_name_is_refused(value: bytes) -> None:
    """Regression: it was taken for an object's pairs, and decoding raised."""
    assert isinstance(decode(value).error, UndecodableError)


@pytest.mark.parametrize("value", [None, b""])
def test_a_record_without_a_value_is_undecodable(value: bytes | None) -> None:
    """A tombstone is the caller's business; as a request it is none."""
    assert isinstance(decode(value).error, UndecodableError)


def test_a_failed_validation_keeps_the_key_as_session() -> None:
    """The failed event carries the session that the record's key names."""
    found = decode({"prompt": 3}, b"s")
    assert (found.session_id, code(found)) == ("s", ErrorCode.INVALID_VALUE)


def test_the_record_is_kept_as_it_came() -> None:
    """The dead-letter topic gets the original bytes."""
    record = Record("t", 0, 1, 2, b"\xff", b"\xfe", (("h", None),))
    assert record is decode_request(record).record
