"""Which browser pages, and which names of this gateway, are let in.

A program sends no `Origin` and may do what its key allows. A browser sends one for a page, but not
for a GET of the page's own site: there, without API keys, the `Host` header is all that tells a
page of ours from one whose name was pointed here (DNS rebinding).
"""

import ipaddress
from urllib.parse import urlsplit

from headrace.schemas.errors import ErrorCode, RequestError

_FOREIGN = "this page may not use this gateway; HEADRACE_ALLOWED_ORIGINS names those that may"


def check_caller(
    origin: str | None, host: str | None, *, keyless: bool, allowed: frozenset[str] = frozenset()
) -> None:
    """Let in pages of this gateway and of `allowed` origins; programs are let in.

    `keyless`: without API keys the host must also be an address, localhost, or an allowed one.
    Raises: RequestError `unauthorized`.
    """
    if origin is not None and origin.lower() in allowed:
        return
    if keyless and not _is_own(host, allowed):
        text = "without API keys this gateway answers to addresses and localhost only"
        raise RequestError(ErrorCode.UNAUTHORIZED, f"{text}, not to the host {host or ''!r:.100}")
    if origin is None:
        return
    page = urlsplit(origin)
    if page.scheme not in ("http", "https") or page.netloc.lower() != (host or "").lower():
        raise RequestError(ErrorCode.UNAUTHORIZED, _FOREIGN)


def _is_own(host: str | None, allowed: frozenset[str]) -> bool:
    if host is None:
        return True  # HTTP/1.0: no browser
    named = f"//{host.lower()}"
    return _is_address(named) or any(one.endswith(named) for one in allowed)


def _is_address(named: str) -> bool:
    try:
        name = urlsplit(named).hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
