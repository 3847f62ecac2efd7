"""Which pages and host names are let in."""

import pytest

from headrace.consumers.origins import check_caller
from headrace.schemas.errors import ErrorCode, RequestError

ALLOWED = frozenset({"https://app.example", "http://localhost:3000"})


@pytest.mark.parametrize(
    ("origin", "host", "keyless"),
    [
        (None, "127.0.0.1:8080", True),
        (None, "localhost:8080", True),
        (None, "[::1]:8080", True),
        (None, None, True),
        (None, "gateway.example", False),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("http://LOCALHOST:8080", "localhost:8080", True),
        ("https://gateway.example", "gateway.example", False),
        ("https://app.example", "gateway.example", False),
        ("https://APP.example", "127.0.0.1:8080", True),
        (None, "app.example", True),
    ],
)
def test_ours_and_named_ones_are_let_in(
    origin: str | None, host: str | None, keyless: bool
) -> None:
    """Programs, pages of this gateway, and the origins of the setting."""
    check_caller(origin, host, keyless=keyless, allowed=ALLOWED)


@pytest.mark.parametrize(
    ("origin", "host", "keyless"),
    [
        (None, "evil.example:8080", True),  # a GET of a page whose name was pointed here
        ("http://evil.example:8080", "evil.example:8080", True),
        ("http://127.0.0.1:9999", "127.0.0.1:8080", True),
        ("https://evil.example", "gateway.example", False),
        ("https://app.example.evil.example", "gateway.example", False),
        ("https://app.example:444", "gateway.example", False),
        ("http://app.example", "gateway.example", False),
        (None, "evilapp.example", True),
        ("null", "127.0.0.1:8080", True),
        ("file://", "", False),
        (None, "[", True),
        (None, "", True),
    ],
)
def test_other_pages_and_names_are_refused(
    origin: str | None, host: str | None, keyless: bool
) -> None:
    """Foreign pages always; foreign names where no key is asked for."""
    with pytest.raises(RequestError) as problem:
        check_caller(origin, host, keyless=keyless, allowed=ALLOWED)
    assert problem.value.code is ErrorCode.UNAUTHORIZED
