"""How `headrace up` keeps a program running, on real processes that stand for workers."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from headrace.deploy import supervisor
from headrace.deploy.processes import ServiceStartError, free_port
from headrace.deploy.supervisor import Program, Supervised

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

# Answers /readyz after `delay` seconds; on SIGTERM it ends at once, or never.
SERVER = """
import http.server, os, signal, sys, time
port, delay, stubborn = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "stubborn"
signal.signal(signal.SIGTERM, (lambda *_: None) if stubborn else (lambda *_: sys.exit(0)))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
time.sleep(delay)
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def program(folder: Path, *, delay_s: float = 0, kind: str = "willing") -> Program:
    """A program that becomes ready after `delay_s`."""
    port = free_port()
    args = [sys.executable, "-c", SERVER, str(port), str(delay_s), kind]
    return Program("it", args, folder / "it.log", port)


async def pid_of(supervised: Supervised, *, other_than: int | None = None) -> int:
    """The process id that the program answers with."""
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", supervised.program.ready_port
                )
                writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
                pid = int((await reader.read()).split(b"\r\n\r\n")[1])
                writer.close()
                if pid != other_than:
                    return pid
            except OSError:
                pass  # not yet
            await asyncio.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Whether no such process is left."""
    return not Path(f"/proc/{pid}").exists()


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait for its end."""
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_program_that_dies_is_started_again_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process on the same port; twice, the second time after a longer pause."""
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_S", 0.1)
    said: list[str] = []
    supervised = Supervised(program(tmp_path), stop_timeout_s=5, on_restart=said.append)
    running = asyncio.create_task(supervised.run())
    await supervised.ready.wait()
    first = await pid_of(supervised)
    os.kill(first, signal.SIGKILL)
    second = await pid_of(supervised, other_than=first)
    os.kill(second, signal.SIGKILL)
    third = await pid_of(supervised, other_than=second)
    assert ["in 0.1 s" in said[0], "in 0.2 s" in said[1], len(said)] == [True, True, 2]
    await cancelled(running)
    assert is_gone(third)


async def test_cancelling_asks_the_program_to_end(tmp_path: Path) -> None:
    """SIGTERM is enough; nothing is waited for longer than that takes."""
    supervised = Supervised(program(tmp_path), stop_timeout_s=30)
    running = asyncio.create_task(supervised.run())
    await supervised.ready.wait()
    pid = await pid_of(supervised)
    async with asyncio.timeout(10):
        await cancelled(running)
    assert is_gone(pid)


async def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """After the stop timeout."""
    supervised = Supervised(program(tmp_path, kind="stubborn"), stop_timeout_s=0.5)
    running = asyncio.create_task(supervised.run())
    await supervised.ready.wait()
    pid = await pid_of(supervised)
    await cancelled(running)
    assert is_gone(pid)


async def test_cancelling_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    """No process, no thread that waits on."""
    supervised = Supervised(program(tmp_path, delay_s=60), stop_timeout_s=5)
    running = asyncio.create_task(supervised.run())
    async with asyncio.timeout(10):
        while not (tmp_path / "it.log").exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
        await cancelled(running)
    assert not supervised.ready.is_set()


async def test_a_first_start_that_fails_is_the_callers_to_report(tmp_path: Path) -> None:
    """With the program's exit code and the end of its log."""
    args = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    broken = Program("it", args, tmp_path / "it.log", free_port())
    with pytest.raises(ServiceStartError, match=r"exit code 3[\s\S]*no such model"):
        await Supervised(broken, stop_timeout_s=5).run()
