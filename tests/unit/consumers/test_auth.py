"""Where a key stands, and bind checks."""

import base64
from pathlib import Path

import pytest

from headrace.consumers.auth import (
    bearer,
    check_bind,
    key_of_subprotocols,
)
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings


def test_strangers_are_served_only_with_keys(tmp_path: Path) -> None:
    """Loopback needs no keys, any other address does."""
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"):
        check_bind(Settings(http_host=host))
    mapped = ("::ffff:0.0.0.0", "::ffff:10.0.0.1")
    for host in ("0.0.0.0", "0", "::", *mapped, "10.0.0.1", "example.org", "localhost.example.org"):
        with pytest.raises(SettingsError):
            check_bind(Settings(http_host=host))
        check_bind(Settings(http_host=host, api_keys_file=tmp_path / "keys.json"))


def test_keys_are_read_from_header_and_subprotocol() -> None:
    """And nothing else is taken for one."""
    assert (bearer("Bearer a"), bearer("bearer  a ")) == ("a", "a")
    assert bearer(None) is bearer("Basic a") is bearer("Bearer ") is None
    coded = base64.urlsafe_b64encode("schlüssel".encode()).decode().rstrip("=")
    assert key_of_subprotocols(["headrace.v1", f"headrace.key.{coded}"]) == "schlüssel"
    assert key_of_subprotocols(["headrace.v1"]) is key_of_subprotocols(["headrace.key.a"]) is None
