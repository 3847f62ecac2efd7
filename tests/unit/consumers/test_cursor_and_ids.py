"""Cursors and request ids: what comes in as text."""

import pytest

from headrace.consumers.cursor import Cursor, parse_cursor
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request_id import new_request_id, time_of


@pytest.mark.parametrize("cursor", [Cursor(0, 0), Cursor(11, 2**53), Cursor(999, 10**17)])
def test_a_cursor_survives_its_text(cursor: Cursor) -> None:
    """Opaque, but round."""
    assert parse_cursor(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text", ["", "c1", "c1.1", "c2.1.1", "c1.-1.1", "c1.1.1 ", "c1.1.9" * 9, "c1.\u0661.1"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """Also digits of other scripts, spaces and numbers beyond 64 bits."""
    with pytest.raises(RequestError) as problem:
        parse_cursor(text)
    assert problem.value.code is ErrorCode.INVALID_VALUE


def test_an_id_of_ours_holds_its_time() -> None:
    """And is unique within the millisecond."""
    ids = {new_request_id(1_796_000_000_123) for _ in range(1000)}
    assert len(ids) == 1000
    assert {time_of(name) for name in ids} == {1_796_000_000_123}
    assert all(len(name) == 36 for name in ids)


@pytest.mark.parametrize(
    "name", ["r1", "req_", "req_" + "0" * 32, "req_01a22f78a42f711db870bf3b7c62d4280"]
)
def test_ids_of_others_hold_no_time(name: str) -> None:
    """Only the exact form counts: version 7 and its variant."""
    assert time_of(name) is None
