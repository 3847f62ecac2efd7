"""Where a caller's key stands, and where the gateway may listen.

Whose key it is: `headrace.consumers.api_keys`.
"""

import base64
import binascii
import ipaddress
from collections.abc import Iterable

from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings

SUBPROTOCOL = "headrace.v1"
"""The WebSocket subprotocol that we speak, for browsers that send their key as one."""

KEY_SUBPROTOCOL = "headrace.key."
"""+ the key in base64url: browsers cannot set headers on a WebSocket, and URLs end in logs."""


def check_bind(settings: Settings) -> None:
    """Refuse to serve strangers: without keys the gateway listens on loopback only.

    Raises: SettingsError.
    """
    if settings.api_keys_file is None and not is_loopback(settings.http_host):
        text = f"HEADRACE_HTTP_HOST={settings.http_host} needs HEADRACE_API_KEYS_FILE"
        raise SettingsError(f"{text}: without API keys only loopback addresses are served")


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bearer(authorization: str | None) -> str | None:
    """The key of an `Authorization` header, if it holds one."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def key_of_subprotocols(offered: Iterable[str]) -> str | None:
    """The key that a browser sent among its WebSocket subprotocols."""
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL):
            text = name.removeprefix(KEY_SUBPROTOCOL)
            try:
                return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
            except (binascii.Error, UnicodeDecodeError):
                return None
    return None
