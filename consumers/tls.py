"""TLS of the gateway: its certificate and key from two PEM files, read anew when they change.

Owns the context that new connections are made with. Those that are open keep the certificate that
they began with.
"""

import asyncio
import ssl
from pathlib import Path

import structlog

from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import PREFIX, Settings

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
        self._seen = self._state()
        self.context = _new_context(cert_file, key_file)
        self.pair = (key_file.read_bytes(), cert_file.read_bytes())
        """For servers that want the texts: key, certificate chain."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch."""
        # NOTE: this object's one task, ended and awaited by `stop`
        self._task = asyncio.create_task(self._watch(), name="gateway.tls")

    async def stop(self) -> None:
        """End the watching. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def reload(self) -> bool:
        """Use the files as they are now, if they changed; whether they did.

        Raises: SettingsError; then the pair from before stays in use.
        """
        state = self._state()
        if state == self._seen:
            return False
        _new_context(self.cert_file, self.key_file)  # half a pair must not spoil the one in use
        self.context.load_cert_chain(self.cert_file, self.key_file, _no_password)
        self.pair = (self.key_file.read_bytes(), self.cert_file.read_bytes())
        self._seen = state
        return True

    async def _watch(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                if self.reload():
                    _log.info("gateway.certificate_replaced", path=str(self.cert_file))
                told = ""
            except SettingsError as problem:
                if str(problem) != told:
                    told = str(problem)
                    _log.warning("gateway.certificate_kept", reason=told)

    def _state(self) -> tuple[object, ...]:
        return tuple(_stamp(path) for path in (self.cert_file, self.key_file))


def load_tls(settings: Settings) -> TlsFiles | None:
    """The TLS that `settings` ask for; None for plain HTTP. Raises: SettingsError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return TlsFiles(settings.tls_cert_file, settings.tls_key_file)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _new_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    for name, path in (("TLS_CERT_FILE", cert_file), ("TLS_KEY_FILE", key_file)):
        try:
            path.read_bytes()
        except OSError as problem:
            raise SettingsError(f"{PREFIX}{name}: {path}: {problem.strerror}") from problem
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert_file, key_file, _no_password)
    except (ssl.SSLError, ValueError) as problem:
        text = f"{cert_file} and {key_file} are no certificate and its key, in PEM"
        raise SettingsError(f"{PREFIX}TLS_CERT_FILE: {text}: {_reason(problem)}") from problem
    return context


def _no_password() -> str:
    """OpenSSL would ask for it on the terminal."""
    raise ValueError("the key is encrypted: decrypt it into a file that only we can read")


def _reason(problem: Exception) -> str:
    return problem.reason if isinstance(problem, ssl.SSLError) and problem.reason else str(problem)
