"""Where a key stands, bind checks and browser origins."""

import base64
from pathlib import Path

import pytest

from headrace.consumers.auth import (
    bearer,
    check_bind,
    check_origin,
    key_of_subprotocols,
)
from headrace.schemas.errors import RequestError, SettingsError
from headrace.schemas.settings import Settings


def test_strangers_are_served_only_with_keys(tmp_path: Path) -> None:
    """Loopback needs no keys, any other address does."""
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        check_bind(Settings(http_host=host))
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(SettingsError):
            check_bind(Settings(http_host=host))
        check_bind(Settings(http_host=host, api_keys_file=tmp_path / "keys.json"))


@pytest.mark.parametrize(
    ("origin", "host", "keyless", "welcome"),
    [
        (None, "h:1", True, True),
        ("http://127.0.0.1:1", "127.0.0.1:1", True, True),
        ("http://localhost:1", "localhost:1", True, True),
        ("http://[::1]:1", "[::1]:1", True, True),
        ("https://chat.example", "chat.example", False, True),
        ("http://rebound.example:1", "rebound.example:1", True, False),
        ("http://127.0.0.1:2", "127.0.0.1:1", True, False),
        ("http://evil.example", "chat.example", False, False),
        ("null", "127.0.0.1:1", True, False),
        ("file://127.0.0.1:1", "127.0.0.1:1", True, False),
    ],
)
def test_only_our_own_page_may_connect(
    origin: str | None, host: str, keyless: bool, welcome: bool
) -> None:
    """Programs send no Origin; without keys a name may not point here either."""
    if welcome:
        check_origin(origin, host, keyless=keyless)
    else:
        with pytest.raises(RequestError):
            check_origin(origin, host, keyless=keyless)


def test_keys_are_read_from_header_and_subprotocol() -> None:
    """And nothing else is taken for one."""
    assert (bearer("Bearer a"), bearer("bearer  a ")) == ("a", "a")
    assert bearer(None) is bearer("Basic a") is bearer("Bearer ") is None
    coded = base64.urlsafe_b64encode("schlüssel".encode()).decode().rstrip("=")
    assert key_of_subprotocols(["headrace.v1", f"headrace.key.{coded}"]) == "schlüssel"
    assert key_of_subprotocols(["headrace.v1"]) is key_of_subprotocols(["headrace.key.a"]) is None
