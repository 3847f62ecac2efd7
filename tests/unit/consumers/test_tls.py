"""The certificate files of the gateway."""

import asyncio
import re
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from headrace.consumers import tls
from headrace.consumers.tls import TlsFiles, load_tls
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings, load_settings


def write_pair(
    folder: Path, authority: trustme.CA, not_after: datetime | None = None
) -> tuple[Path, Path]:
    """A fresh certificate of this machine's, and its key."""
    made = authority.issue_cert("127.0.0.1", "localhost", not_after=not_after)
    certificate, key = folder / "chain.pem", folder / "key.pem"
    made.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    return certificate, key


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pair(tmp_path: Path, authority: trustme.CA) -> tuple[Path, Path]:
    return write_pair(tmp_path, authority)


def test_without_files_it_is_plain_http() -> None:
    """And one without the other is an error at start."""
    assert load_tls(Settings()) is None
    with pytest.raises(SettingsError, match="needed together"):
        load_settings(tls_cert_file="chain.pem")


def test_a_changed_pair_is_used_and_a_broken_one_is_not(
    pair: tuple[Path, Path], tmp_path: Path, authority: trustme.CA
) -> None:
    """The context that connections are made with stays the same object."""
    files = TlsFiles(*pair)
    context, before = files.context, files.pair
    assert not files.reload()
    pair[0].write_text("-----BEGIN")
    with pytest.raises(SettingsError):
        files.reload()
    assert (files.context, files.pair) == (context, before)
    (tmp_path / "new").mkdir()
    for new, old in zip(write_pair(tmp_path / "new", authority), pair, strict=True):
        shutil.copy(new, old)
    assert files.reload()
    assert files.context is context
    assert files.pair != before


def encrypted(key: Path) -> None:
    """Put a password on it."""
    found = load_pem_private_key(key.read_bytes(), password=None)
    form = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret"))
    key.write_bytes(found.private_bytes(*form))


@pytest.mark.parametrize("fault", ["other key", "no PEM", "encrypted", "gone", "a folder"])
def test_what_cannot_be_used_is_one_clear_error(
    pair: tuple[Path, Path], tmp_path: Path, authority: trustme.CA, fault: str
) -> None:
    """It names the file, shows nothing of it, and nobody is asked for a password."""
    certificate, key = pair
    if fault == "other key":
        (tmp_path / "other").mkdir()
        key = write_pair(tmp_path / "other", authority)[1]
    elif fault == "no PEM":
        certificate.write_text("hello")
    elif fault == "encrypted":
        encrypted(key)
    elif fault == "gone":
        key = tmp_path / "gone.pem"
    else:
        key = tmp_path
    with pytest.raises(SettingsError, match=re.escape(str(tmp_path))) as problem:
        TlsFiles(certificate, key)
    assert "PRIVATE KEY" not in str(problem.value)
    assert ("decrypt" in str(problem.value)) == (fault == "encrypted")


class VanishingPath(type(Path())):  # type: ignore[misc]
    """A file that is renamed away as soon as it was read, as some renewals do it."""

    def read_bytes(self) -> bytes:
        """The last look at it."""
        found: bytes = super().read_bytes()
        self.unlink()
        return found


def test_files_that_vanish_while_they_are_read_are_one_clear_error(
    pair: tuple[Path, Path],
) -> None:
    """An OSError from there ended the watching for ever, and nothing told of it."""
    with pytest.raises(SettingsError, match="No such file"):
        TlsFiles(pair[0], VanishingPath(pair[1]))


async def told(files: TlsFiles, event: str) -> list[str]:
    """The events of its watching, up to and with `event`."""
    with capture_logs() as lines:
        await files.start()
        try:
            async with asyncio.timeout(5):
                while event not in [line["event"] for line in lines]:  # noqa: ASYNC110 - a log
                    await asyncio.sleep(0.01)
        finally:
            await files.stop()
    return [line["event"] for line in lines]


async def test_an_expired_certificate_is_told_once_until_there_is_another(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served all the same: what clients say to it is clear."""
    monkeypatch.setattr(tls, "WATCH_INTERVAL_S", 0.01)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    files = TlsFiles(*write_pair(tmp_path, authority, yesterday))
    assert await told(files, "gateway.certificate_expired") == ["gateway.certificate_expired"]
    write_pair(tmp_path, authority)
    assert "gateway.certificate_replaced" in await told(files, "gateway.certificate_replaced")
    assert files.expires_at > datetime.now(UTC)


async def certificate_shown(port: int) -> bytes | None:
    """What a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return found


async def test_new_connections_are_shown_the_new_certificate(
    pair: tuple[Path, Path], authority: trustme.CA
) -> None:
    """The server that listens is not started anew; a broken pair between them changes nothing."""
    files = TlsFiles(*pair)

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=files.context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        before = await certificate_shown(port)
        pair[0].write_text("-----BEGIN")
        with pytest.raises(SettingsError):
            files.reload()
        assert await certificate_shown(port) == before
        write_pair(pair[0].parent, authority)
        assert files.reload()
        assert await certificate_shown(port) not in (None, before)
