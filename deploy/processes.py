"""Server programs of the local stack, as child processes that never outlive us.

Owns starting one program, waiting until it answers, stopping it, and the tail of its log. Knows
nothing of Kafka or Valkey. On Linux the kernel ends the child when this process ends, even by
SIGKILL; elsewhere an `atexit` hook does, which a SIGKILL of this process escapes.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.models.cache import dying_with_us
from headrace.schemas.errors import HeadraceError

POLL_INTERVAL_S = 0.05
KILL_TIMEOUT_S = 5.0
LOG_TAIL_BYTES = 3000
LOG_ROTATE_BYTES = 8 * 2**20

# Below Linux's range for outgoing connections (32768 and up), so that nobody's client socket takes
# the port between our choice and the server's bind.
PORT_RANGE = range(20_000, 32_000)
PORT_TRIES = 200

# NOTE: the death signal comes when the *thread* that forked ends, so one lasting thread forks all.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-spawner")


class ServiceStartError(HeadraceError):
    """A program of the local stack did not come up; the text holds the end of its log."""

    retriable = True

    def __init__(self, name: str, reason: str, log_path: Path) -> None:
        super().__init__(name, reason, log_path)
        self.name, self.reason, self.log_path = name, reason, log_path
        self.log_tail = tail(log_path)

    def __str__(self) -> str:
        text = f"{self.name} did not start: {self.reason} (log: {self.log_path})"
        return f"{text}\n{self.log_tail}" if self.log_tail else text


def tail(path: Path, max_bytes: int = LOG_TAIL_BYTES) -> str:
    """The last `max_bytes` of a text file, from the start of a line; empty if there is no file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - max_bytes))
        text = file.read().decode("utf-8", "replace")
    return text.strip() if size_bytes <= max_bytes else text.partition("\n")[2].strip()


def port_is_free(port: int) -> bool:
    """Whether nobody listens on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As the servers do: a port in TIME_WAIT counts as free, one that is listened on does not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now.

    Raises: `OSError` when none is found.
    """
    for port in random.sample(PORT_RANGE, PORT_TRIES):
        if port_is_free(port):
            return port
    raise OSError(f"no free port on 127.0.0.1 in {PORT_TRIES} tries of {PORT_RANGE}")


class ServerProcess:
    """One server program: started until it answers, in a session of its own, ended with us.

    A terminal's Ctrl-C does not reach it: whoever started it stops it, in the right order.
    """

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the program runs now."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The program's process id while it runs, e.g. to pause it with SIGSTOP."""
        return self._process.pid if self._process is not None and self.alive else None

    def start(
        self, args: Sequence[str], *, port: int, is_ready: Callable[[], bool], timeout_s: float
    ) -> None:
        """Start the program and block until `is_ready()`; leaves nothing running on failure.

        Raises: `ServiceStartError` when it ends or does not answer within `timeout_s`, or when
        another one runs in the same folder or has the port.
        """
        if not port_is_free(port):  # else whoever has it would answer in our server's place
            raise ServiceStartError(self.name, f"port {port} is taken", self.log_path)
        try:
            self._process = _spawner.submit(_spawn, list(args), self.log_path).result()
        except BlockingIOError as error:
            reason = f"another one is running in {self.log_path.parent}"
            raise ServiceStartError(self.name, reason, self.log_path) from error
        atexit.register(self.kill)
        deadline_s = time.monotonic() + timeout_s
        try:
            while not is_ready():
                self._require_progress(deadline_s, timeout_s)
                time.sleep(POLL_INTERVAL_S)
        except BaseException:
            self.kill()
            raise

    def _require_progress(self, deadline_s: float, timeout_s: float) -> None:
        if self._process is not None and self._process.poll() is not None:
            reason = f"it ended with exit code {self._process.returncode}"
            raise ServiceStartError(self.name, reason, self.log_path)
        if time.monotonic() > deadline_s:
            reason = f"no answer within {timeout_s:.0f} s"
            raise ServiceStartError(self.name, reason, self.log_path)

    def stop(self, timeout_s: float) -> None:
        """Ask the program to end (SIGTERM), and kill it after `timeout_s`. Safe to call twice."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # one that is paused would never see it
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """End the program at once (SIGKILL) and wait until it is gone. Safe to call twice."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(KILL_TIMEOUT_S)
        atexit.unregister(self.kill)


def _spawn(args: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.with_suffix(".lock").open("ab") as lock:
        # The server inherits the locked file and so holds the lock exactly as long as it lives.
        # Kafka's own lock comes too late: a second node has written to the metadata log by then.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if log_path.exists() and log_path.stat().st_size > LOG_ROTATE_BYTES:
            log_path.replace(log_path.with_suffix(".log.1"))
        with log_path.open("ab") as log:
            return subprocess.Popen(
                dying_with_us(args),
                cwd=log_path.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
