"""API keys: whose each is, what its tenant may use, and the change of both while we serve.

Owns the form of the keys file and the table that counts now. Reads the file when told to; who
watches it is `headrace.consumers.keys_watch`.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.consumers.rate_limits import Limits
from headrace.schemas.errors import ErrorCode, RequestError, SettingsError, UndecodableError
from headrace.schemas.request import DEFAULT_TENANT, Identifier
from headrace.schemas.settings import PREFIX
from headrace.schemas.strict_json import decode_object

DIGEST_PREFIX = "sha256:"
_DIGEST = re.compile(DIGEST_PREFIX + "([0-9a-fA-F]{64})")
_FORM = "must be a key and its tenant, or a key and an object with its tenant and limits"


class _Entry(BaseModel):
    """What the file says of one key; a limit that it does not name is the setting's."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    tenant: Identifier
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)

    @property
    def limits(self) -> Limits:
        return Limits(self.requests_per_minute, self.tokens_per_minute)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """What one reading of the file said: tenants by digest of their keys, limits by tenant.

    `tenants` is None where there is no file: every caller is welcome.
    """

    tenants: Mapping[bytes, str] | None = None
    limits: Mapping[str, Limits] = field(default_factory=dict)


class ApiKeys:
    """The keys of a gateway. `replace` changes them; open sockets of a key that went are told."""

    def __init__(self, table: KeyTable, *, limits: Limits | None = None) -> None:
        """`limits`: those of a tenant of which the table says nothing else."""
        self._default = limits or Limits()
        self._on_revoked: defaultdict[bytes, set[Callable[[], None]]] = defaultdict(set)
        self._use(table)

    def _use(self, table: KeyTable) -> None:
        self.table = table
        named = {DEFAULT_TENANT} if table.tenants is None else table.tenants.values()
        self._tenants = frozenset(named)

    @property
    def keyless(self) -> bool:
        """Whether callers need no key."""
        return self.table.tenants is None

    def tenant_of(self, key: str | None) -> str:
        """The tenant that `key` belongs to. Raises: RequestError `unauthorized`."""
        if self.table.tenants is None:
            return DEFAULT_TENANT
        tenant = self.table.tenants.get(digest_of(key or ""))
        if key is None or tenant is None:
            text = "no API key was given" if key is None else "the API key is not known"
            raise RequestError(ErrorCode.UNAUTHORIZED, text)
        return tenant

    def limits_of(self, tenant: str) -> Limits | None:
        """What `tenant` may use; None where no key names it: then it is no tenant of ours."""
        if tenant not in self._tenants:
            return None
        return self.table.limits.get(tenant, Limits()).or_else(self._default)

    @contextmanager
    def watched(
        self, key: str | None, tenant: str, on_revoked: Callable[[], None]
    ) -> Iterator[None]:
        """While inside, `on_revoked` is called once `key` is not the key of `tenant` any more.

        It must not wait. It is called at once where that was so before.
        """
        digest = digest_of(key or "")
        self._on_revoked[digest].add(on_revoked)
        if not self.keyless and (self.table.tenants or {}).get(digest) != tenant:
            on_revoked()
        try:
            yield
        finally:
            self._on_revoked[digest].discard(on_revoked)
            if not self._on_revoked[digest]:
                del self._on_revoked[digest]

    def replace(self, table: KeyTable) -> None:
        """Use `table` from now on."""
        before = self.table.tenants or {}
        self._use(table)
        after = table.tenants or {}
        for digest in [one for one in self._on_revoked if before.get(one) != after.get(one)]:
            for on_revoked in list(self._on_revoked[digest]):
                on_revoked()


def digest_of(key: str) -> bytes:
    """What a key is known by.

    NOTE: found in a dict, not compared one by one. A look-up's time can tell something of the
    digest, never of the key, and nobody makes a key to a digest that he wants.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def load_key_table(path: Path | None) -> KeyTable:
    """Read the keys file. Raises: SettingsError naming what is wrong, never a key."""
    return KeyTable() if path is None else parse_keys_file(path, read_keys_file(path))


def read_keys_file(path: Path) -> bytes:
    """The file's bytes. Raises: SettingsError."""
    try:
        return path.read_bytes()
    except OSError as problem:
        text = problem.strerror or type(problem).__name__
        raise SettingsError(f"{PREFIX}API_KEYS_FILE: {path}: {text}") from problem


def parse_keys_file(path: Path, data: bytes) -> KeyTable:
    """The table in `data`, which was read from `path`. Raises: SettingsError that shows no key."""
    try:
        return _table_in(data)
    except RequestError as problem:
        # NOTE: without its param, which can be a name in the file: a key
        raise SettingsError(f"{PREFIX}API_KEYS_FILE: {path}: {problem.message}") from None


def _table_in(data: bytes) -> KeyTable:
    """Raises: RequestError."""
    entries = decode_object(data)
    if not entries:
        raise UndecodableError("it holds no key")
    tenants: dict[bytes, str] = {}
    limits: dict[str, Limits] = {}
    for number, (key, value) in enumerate(entries.items(), start=1):
        digest, entry = _digest_in(key, number), _entry(value, number)
        if digest in tenants:
            raise UndecodableError(f"entry {number} is the key of an earlier one")
        tenants[digest] = entry.tenant
        if entry.limits == Limits():
            continue
        if limits.setdefault(entry.tenant, entry.limits) != entry.limits:
            raise UndecodableError(f"entry {number} has other limits than its tenant's other keys")
    return KeyTable(tenants, limits)


def _digest_in(key: str, number: int) -> bytes:
    if not key.startswith(DIGEST_PREFIX):
        if not key:
            raise UndecodableError(f"entry {number} {_FORM}")
        return digest_of(key)
    found = _DIGEST.fullmatch(key)
    if found is None:
        raise UndecodableError(f"entry {number}: {DIGEST_PREFIX} needs 64 hex digits")
    return bytes.fromhex(found[1])


def _entry(value: Any, number: int) -> _Entry:
    try:
        return _Entry.model_validate({"tenant": value} if isinstance(value, str) else value)
    except ValidationError:
        raise UndecodableError(f"entry {number} {_FORM}") from None
