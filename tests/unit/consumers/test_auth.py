"""API keys, bind checks and browser origins."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from headrace.consumers.auth import (
    ApiKeys,
    bearer,
    check_bind,
    check_origin,
    key_of_subprotocols,
    load_api_keys,
)
from headrace.schemas.errors import RequestError, SettingsError
from headrace.schemas.settings import Settings


def keys_file(folder: Path, text: str) -> Path:
    path = folder / "keys.json"
    path.write_text(text)
    return path


def test_plain_and_hashed_keys_name_their_tenants(tmp_path: Path) -> None:
    """Both forms stand side by side; a hash is no key."""
    digest = hashlib.sha256(b"b").hexdigest()
    keys = load_api_keys(keys_file(tmp_path, json.dumps({"a": "acme", f"sha256:{digest}": "bob"})))
    assert (keys.tenant_of("a"), keys.tenant_of("b")) == ("acme", "bob")
    for wrong in (None, "", "c", f"sha256:{digest}", "a ", "\ud800"):
        with pytest.raises(RequestError):
            keys.tenant_of(wrong)


def test_without_a_file_everybody_is_default() -> None:
    """A key that is sent all the same does no harm."""
    assert ApiKeys(None).tenant_of(None) == load_api_keys(None).tenant_of("x") == "default"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"a":1}', '{"":"t"}', '{"sha256:12":"t"}', '{"a":""}']
)
def test_a_bad_keys_file_is_an_error_that_shows_no_key(tmp_path: Path, text: str) -> None:
    """Found at start, not at the first call."""
    with pytest.raises(SettingsError) as problem:
        load_api_keys(keys_file(tmp_path, text))
    assert "sha256:12" not in str(problem.value)
    with pytest.raises(SettingsError):
        load_api_keys(tmp_path / "missing.json")


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
