"""Who calls: API keys, tenants, and which browser pages may connect.

Owns the credential checks of the gateway. Keys are compared as SHA-256 digests in constant time.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.schemas.errors import ErrorCode, RequestError, SettingsError, UndecodableError
from headrace.schemas.request import DEFAULT_TENANT, MAX_ID_CHARS
from headrace.schemas.settings import Settings
from headrace.schemas.strict_json import decode_object

SUBPROTOCOL = "headrace.v1"
"""The WebSocket subprotocol that we speak, for browsers that send their key as one."""

KEY_SUBPROTOCOL = "headrace.key."
"""+ the key in base64url: browsers cannot set headers on a WebSocket, and URLs end in logs."""

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys of a gateway; `tenants` is by digest, None where every caller is welcome."""

    tenants: Mapping[bytes, str] | None

    def tenant_of(self, key: str | None) -> str:
        """The tenant that `key` belongs to. Raises: RequestError `unauthorized`."""
        if self.tenants is None:
            return DEFAULT_TENANT
        shown = hashlib.sha256((key or "").encode("utf-8", "surrogatepass")).digest()
        found = None
        for digest, tenant in self.tenants.items():  # all of them, whichever fits
            if hmac.compare_digest(digest, shown):
                found = tenant
        if key is None or found is None:
            text = "no API key was given" if key is None else "the API key is not known"
            raise RequestError(ErrorCode.UNAUTHORIZED, text)
        return found


def load_api_keys(path: Path | None) -> ApiKeys:
    """Read the keys file. Raises: SettingsError naming what is wrong, never a key."""
    if path is None:
        return ApiKeys(None)
    try:
        entries = decode_object(path.read_bytes())
    except OSError as problem:
        raise SettingsError(f"HEADRACE_API_KEYS_FILE: {path}: {problem.strerror}") from problem
    except (UndecodableError, RequestError) as problem:
        raise SettingsError(f"HEADRACE_API_KEYS_FILE: {path}: {problem}") from problem
    if not entries:
        raise SettingsError(f"HEADRACE_API_KEYS_FILE: {path} holds no key")
    tenants = {}
    for number, (key, tenant) in enumerate(entries.items(), start=1):
        if not key or not isinstance(tenant, str) or not 0 < len(tenant) <= MAX_ID_CHARS:
            text = f"entry {number} must be a key and its tenant, both non-empty strings"
            raise SettingsError(f"HEADRACE_API_KEYS_FILE: {path}: {text}")
        tenants[_digest_of(key, f"{path}: entry {number}")] = tenant
    return ApiKeys(tenants)


def _digest_of(key: str, where: str) -> bytes:
    if not key.startswith("sha256:"):
        return hashlib.sha256(key.encode()).digest()
    found = _DIGEST.fullmatch(key)
    if found is None:
        raise SettingsError(f"HEADRACE_API_KEYS_FILE: {where}: sha256: needs 64 hex digits")
    return bytes.fromhex(found[1])


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


def check_origin(origin: str | None, host: str | None, *, keyless: bool) -> None:
    """Let in browser pages of this gateway only; programs send no `Origin`.

    `keyless`: without API keys the host must be an address or localhost too, or a page could bring
    its own name to point here (DNS rebinding). Raises: RequestError `unauthorized`.
    """
    if origin is None:
        return
    page = urlsplit(origin)
    same = page.scheme in ("http", "https") and page.netloc.lower() == (host or "").lower()
    if not same or (keyless and not _is_address(page.hostname or "")):
        raise RequestError(ErrorCode.UNAUTHORIZED, "this page may not use this gateway")


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
