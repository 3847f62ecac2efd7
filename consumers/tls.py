"""TLS of the gateway: its certificate and key from two PEM files, read anew when they change.

Owns the context that new connections are made with. Those that are open keep the certificate that
they began with.
"""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import structlog
from cryptography.x509 import load_pem_x509_certificate

from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import PREFIX, Settings
from headrace.schemas.tasks import OwnedTask

WATCH_INTERVAL_S = 5.0
"""A renewed certificate is used this soon; they are renewed days before their end."""

_log = structlog.get_logger(__name__)


class TlsFiles:
    """The two files, and the context made of them.

    `start` and `stop` frame the watching; between them one task looks at the files.
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Raises: SettingsError where they cannot be used; it names the file, never its content."""
        self.cert_file, self.key_file = cert_file, key_file
        made = _Loaded(cert_file, key_file)
        self.context = made.context
        self.pair = made.pair
        """For servers that want the texts: key, certificate chain."""
        self.expires_at = made.expires_at
        self._task = OwnedTask("gateway.tls")

    async def start(self) -> None:
        """Begin to watch."""
        self._task.start(self._watch())

    async def stop(self) -> None:
        """End the watching. Safe to call twice. Raises: what ended it before, if anything did."""
        await self._task.stop()

    def reload(self) -> bool:
        """Use the files as they are now, if they changed; whether they did.

        Raises: SettingsError; then the pair from before stays in use.
        """
        if _pair_in(self.cert_file, self.key_file) == self.pair:
            return False
        made = _Loaded(self.cert_file, self.key_file)  # half a pair must not spoil the one in use
        _load(self.context, self.cert_file, self.key_file)
        self.pair, self.expires_at = made.pair, made.expires_at
        return True

    async def _watch(self) -> None:
        told, expired = "", False
        while True:
            if self.expires_at > datetime.now(UTC):
                expired = False
            elif not expired:
                expired = True
                _log.warning("gateway.certificate_expired", path=str(self.cert_file))
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                if self.reload():
                    _log.info("gateway.certificate_replaced", path=str(self.cert_file))
                told = ""
            except SettingsError as problem:
                if str(problem) != told:
                    told = str(problem)
                    _log.warning("gateway.certificate_kept", reason=told)


def load_tls(settings: Settings) -> TlsFiles | None:
    """The TLS that `settings` ask for; None for plain HTTP. Raises: SettingsError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return TlsFiles(settings.tls_cert_file, settings.tls_key_file)


class _Loaded:
    """All that is made of the two files. Raises: SettingsError."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self.pair = _pair_in(cert_file, key_file)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        _load(self.context, cert_file, key_file)
        try:
            self.expires_at = load_pem_x509_certificate(self.pair[1]).not_valid_after_utc
        except ValueError as problem:
            raise SettingsError(f"{PREFIX}TLS_CERT_FILE: {cert_file}: {problem}") from problem


def _pair_in(cert_file: Path, key_file: Path) -> tuple[bytes, bytes]:
    """Key and certificate chain. Raises: SettingsError."""
    return _read("TLS_KEY_FILE", key_file), _read("TLS_CERT_FILE", cert_file)


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise SettingsError(f"{PREFIX}{name}: {path}: {problem.strerror}") from problem


def _load(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Raises: SettingsError, also where the files went since they were read."""
    try:
        context.load_cert_chain(cert_file, key_file, _no_password)
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        text = f"{cert_file} and {key_file} are no certificate and its key, in PEM"
        raise SettingsError(f"{PREFIX}TLS_CERT_FILE: {text}: {_reason(problem)}") from problem


def _no_password() -> str:
    """OpenSSL would ask for it on the terminal."""
    raise ValueError("the key is encrypted: decrypt it into a file that only we can read")


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError):  # ssl.SSLError is one
        reason = problem.reason if isinstance(problem, ssl.SSLError) else problem.strerror
        return reason or str(problem)
    return str(problem)
