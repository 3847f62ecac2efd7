"""The certificate files of the gateway."""

import re
import shutil
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.consumers.tls import TlsFiles, load_tls
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings, load_settings


def write_pair(folder: Path, authority: trustme.CA) -> tuple[Path, Path]:
    """A fresh certificate of this machine's, and its key."""
    made = authority.issue_cert("127.0.0.1", "localhost")
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
