"""Keeps a program of ours running: started until ready, restarted when it dies, drained at the end.

Owns one child process's life. Knows nothing of what the program does; `ServerProcess` sees to it
that no child outlives us.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from headrace.deploy.http_get import get_text
from headrace.deploy.processes import ServerProcess, ServiceStartError
from headrace.schemas.tasks import finish_despite_cancel

READY_TIMEOUT_S = 300.0
"""A large model takes minutes to load from a slow disk; one that fails ends much sooner."""

PROBE_TIMEOUT_S = 2.0
WATCH_INTERVAL_S = 0.2
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
STEADY_S = 60.0
"""A program that ran this long has recovered: its next restart comes at once again."""

_log = structlog.get_logger(__name__)


class _AbortedError(Exception):
    """Private signal: we are stopping, so nobody waits for this start any more."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run, and the address that answers `/readyz` with 200 when it is ready."""

    name: str
    args: Sequence[str]
    log_path: Path
    ready_port: int
    ready_host: str = "127.0.0.1"
    ready_tls: bool = False


class Supervised:
    """One program under supervision; `run` is its whole life."""

    def __init__(
        self,
        program: Program,
        *,
        stop_timeout_s: float,
        on_restart: Callable[[str], None] = lambda text: None,
        must_start: bool = True,
    ) -> None:
        """`must_start`: whether a first start that fails ends `run`; else it is tried again."""
        self.program = program
        self.ready = asyncio.Event()
        """Set when it answered for the first time."""
        self.starting_since_s: float | None = time.monotonic()
        """Monotonic seconds; None while it serves."""
        self.start_took_s: float | None = None
        """What its newest start took."""
        self._must_start = must_start
        self._stop_timeout_s = stop_timeout_s
        self._on_restart = on_restart
        self._process = ServerProcess(program.name, program.log_path)
        self._abort = threading.Event()

    @property
    def pid(self) -> int | None:
        """The program's process id while it runs."""
        return self._process.pid

    async def run(self) -> None:
        """Start the program and keep it running for ever.

        Raises: ServiceStartError when its very first start fails, if it must not.
        Cancel: this is how it is stopped: SIGTERM, a wait of at most `stop_timeout_s`, SIGKILL. A
        second cancel does not end the wait.
        """
        try:
            await self._first_start()
            await self._keep_running()
        finally:
            stopping = asyncio.to_thread(self._process.stop, self._stop_timeout_s)
            await finish_despite_cancel(stopping)

    def kill(self) -> None:
        """End the program at once."""
        self._process.kill()

    async def _first_start(self) -> None:
        try:
            await self._start()
        except ServiceStartError as problem:
            if self._must_start:
                raise
            _log.warning("supervisor.start_failed", program=problem.name, reason=problem.reason)

    async def _keep_running(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            started_s = time.monotonic()
            await self._ended()
            if time.monotonic() - started_s > STEADY_S:
                backoff_s = FIRST_BACKOFF_S
            self._on_restart(
                f"{self.program.name} ended; it is started again in {backoff_s:g} s "
                f"(log: {self.program.log_path})"
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
            try:
                await self._start()
            except ServiceStartError as problem:
                _log.warning("supervisor.start_failed", program=problem.name, reason=problem.reason)

    async def _ended(self) -> None:
        while True:
            if not self._process.alive:
                self.starting_since_s = time.monotonic()
                return
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _start(self) -> None:
        self._abort.clear()
        started_s = time.monotonic()
        work = asyncio.to_thread(
            self._process.start,
            self.program.args,
            port=self.program.ready_port,
            is_ready=self._is_ready,
            timeout_s=READY_TIMEOUT_S,
        )
        starting = asyncio.ensure_future(work)  # a thread cannot be cancelled: told, and awaited
        try:
            await asyncio.shield(starting)
            self.starting_since_s, self.start_took_s = None, time.monotonic() - started_s
            self.ready.set()
        except asyncio.CancelledError:
            self._abort.set()
            with suppress(_AbortedError, ServiceStartError):
                await starting
            raise

    def _is_ready(self) -> bool:
        if self._abort.is_set():
            raise _AbortedError
        asked = self.program
        return answers(asked.ready_host, asked.ready_port, "/readyz", tls=asked.ready_tls)


def answers(host: str, port: int, path: str, *, tls: bool = False) -> bool:
    """Whether a GET of this address gives 200 now."""
    return get_text(host, port, path, timeout_s=PROBE_TIMEOUT_S, tls=tls) is not None
