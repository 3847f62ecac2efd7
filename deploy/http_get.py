"""Asks a process of ours on this machine over HTTP: its health or its metrics."""

import http.client
import ssl


def get_text(host: str, port: int, path: str, *, timeout_s: float, tls: bool = False) -> str | None:
    """The body of a GET that is answered with 200; None otherwise.

    Blocks for at most `timeout_s` for each part of the answer: for a thread. `tls`: over HTTPS,
    whatever name the certificate holds: we ask by address, and tell nothing.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    if tls:
        connection = http.client.HTTPSConnection(
            host,
            port,
            timeout=timeout_s,
            context=ssl._create_unverified_context(),  # noqa: S323 - see above
        )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return None
    finally:
        connection.close()
