"""The gateway's listening socket."""

import socket

from headrace.deploy.commands.gateway import listening


def test_connections_send_small_pieces_at_once() -> None:
    """Regression: each event waited 40 ms for the ACK of the one before it (Nagle)."""
    with (
        listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
