"""Asks a process of ours on this machine over HTTP: its health or its metrics."""

import http.client


def get_text(host: str, port: int, path: str, *, timeout_s: float) -> str | None:
    """The body of a GET that is answered with 200; None otherwise.

    Blocks for at most `timeout_s` for each part of the answer: for a thread.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return None
    finally:
        connection.close()
