"""How a client reaches gateways over TLS: with certificates that the machine trusts, or others."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from websockets.asyncio.server import ServerConnection, serve

from headrace.producers.client_dialer import Addresses, Dialer
from headrace.schemas.errors import UnavailableError


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """A gateway's URL, and the certificate of who signed its own."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)

    async def wait(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with serve(wait, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", tmp_path / "ca.pem"


async def test_a_certificate_that_the_machine_trusts_needs_no_context(
    served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`https://` is enough, as for any other client."""
    url, trusted = served
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    socket = await Dialer(Addresses.of([url], None, None)).open()
    await socket.close()


async def test_a_context_says_which_others_are_trusted(served: tuple[str, Path]) -> None:
    """A company's own authority, say."""
    url, trusted = served
    context = ssl.create_default_context(cafile=trusted)
    socket = await Dialer(Addresses.of([url], None, context)).open()
    await socket.close()


async def test_a_certificate_that_nobody_trusts_is_told(served: tuple[str, Path]) -> None:
    """It may be renewed: the client tries again, and says why in the end."""
    url, _ = served
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        await Dialer(Addresses.of([url], None, None)).open()
