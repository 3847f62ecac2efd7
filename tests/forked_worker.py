"""A `headrace worker` process forked from one that has imported everything, so that it starts in a
second. Loading torch and transformers takes five, and the tests start some hundred workers.

The process is like one that was started alone: own pid, environment, log, signals and exit code.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

POLL_INTERVAL_S = 0.02


class ForkedWorker:
    """One worker, with what tests use of `subprocess.Popen`."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.forked_worker", *_PRELOADED])
        self._process: ForkServerProcess = context.Process(
            target=_run, args=(dict(environment), log), daemon=True
        )
        self._lock = threading.Lock()  # two readers of one exit code would get one of them none
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        with self._lock:
            return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended. Raises: subprocess.TimeoutExpired."""
        deadline_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("headrace worker", timeout)
            time.sleep(POLL_INTERVAL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_PRELOADED = ["headrace.streams.worker", "headrace.deploy.commands.worker"]


def _run(environment: dict[str, str], log: Path) -> None:
    """The forked process."""
    os.environ.clear()  # noqa: TID251 - a process of its own has the environment it was given
    os.environ.update(environment)  # noqa: TID251
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.argv = ["headrace", "worker"]
    from headrace.deploy.cli import run

    sys.exit(run(["worker"]))
