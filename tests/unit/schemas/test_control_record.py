"""The control record (contract §4)."""

import json
from typing import Any

import pytest

from headrace.schemas.control import Cancel, DeleteSession, decode_control
from headrace.schemas.errors import ErrorCode, RequestError, UndecodableError


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_cancel() -> None:
    """Its request, session and tenant; unknown fields are ignored."""
    value = encoded(action="cancel", request_id="r", session_id="s", tenant="t", why="tired")
    assert Cancel(request_id="r", session_id="s", tenant="t") == decode_control(value)


def test_delete_session() -> None:
    """Its session; the tenant is the default."""
    value = encoded(action="delete_session", session_id="s")
    assert DeleteSession(session_id="s", tenant="default") == decode_control(value)


@pytest.mark.parametrize(
    ("field", "header", "expected"),
    [("a", b"b", "a"), (None, b"b", "b"), (None, b"\xff", "default"), (None, None, "default")],
)
def test_the_tenant_is_as_in_requests(
    field: str | None, header: bytes | None, expected: str
) -> None:
    """Regression: the header was not looked at, so a tenant's cancel had no effect."""
    value = encoded(action="delete_session", session_id="s", tenant=field)
    assert expected == decode_control(value, [("headrace-tenant", header)]).tenant


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "action"),
    ({"action": None}, "action"),
    ({"action": ["cancel"]}, "action"),
    ({"action": "stop", "session_id": "s"}, "action"),
    ({"action": "cancel", "session_id": "s"}, "request_id"),
    ({"action": "cancel", "request_id": "r"}, "session_id"),
    ({"action": "cancel", "request_id": "", "session_id": "s"}, "request_id"),
    ({"action": "cancel", "request_id": 3, "session_id": "s"}, "request_id"),
    ({"action": "delete_session", "session_id": "s" * 513}, "session_id"),
    ({"action": "delete_session", "session_id": None}, "session_id"),
    ({"action": "delete_session", "session_id": "s", "tenant": ""}, "tenant"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_a_bad_control_record_is_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    """Regression: the path began with the kind of record (`cancel.request_id`)."""
    with pytest.raises(RequestError) as caught:
        decode_control(encoded(**fields))
    assert (ErrorCode.INVALID_VALUE, param) == (caught.value.code, caught.value.param)


@pytest.mark.parametrize("value", [b"", b"null", b"[]", b"{", b"\xff"])
def test_poison_is_undecodable(value: bytes) -> None:
    """The same strictness as for requests."""
    with pytest.raises(UndecodableError):
        decode_control(value)
