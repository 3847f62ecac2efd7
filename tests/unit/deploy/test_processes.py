"""Child processes of the local stack: ports, log tails, failed starts, stops that are ignored."""

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.deploy.processes import (
    PORT_RANGE,
    ServerProcess,
    ServiceStartError,
    free_port,
    port_is_free,
    tail,
)

IGNORES_SIGTERM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_free_port_is_one_that_nobody_listens_on() -> None:
    """The port lies below the range of outgoing connections and can be bound."""
    port = free_port()
    assert port in PORT_RANGE
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not port_is_free(port)


def test_tail_starts_with_a_whole_line(tmp_path: Path) -> None:
    """A long log is cut at a line, a short one is whole, a missing one is empty."""
    log = tmp_path / "x.log"
    assert tail(log) == ""
    log.write_text("first\nsecond\nthird\n")
    assert tail(log) == "first\nsecond\nthird"
    assert tail(log, max_bytes=9) == "third"


def test_a_program_that_ends_is_reported_with_its_words(tmp_path: Path) -> None:
    """The error names the exit code, the log's place and the log's end."""
    server = ServerProcess("Thing", tmp_path / "thing.log")
    with pytest.raises(ServiceStartError) as failure:
        server.start(
            [sys.executable, "-c", "print('no such wheel'); raise SystemExit(3)"],
            port=free_port(),
            is_ready=lambda: False,
            timeout_s=10,
        )
    text = str(failure.value)
    assert "Thing did not start: it ended with exit code 3" in text
    assert str(tmp_path / "thing.log") in text
    assert text.endswith("no such wheel")
    assert failure.value.retriable
    assert not server.alive


def test_a_program_that_never_answers_is_killed(tmp_path: Path) -> None:
    """The wait is bounded and leaves no process behind."""
    server = ServerProcess("Thing", tmp_path / "thing.log")
    with pytest.raises(ServiceStartError, match="no answer within 0 s"):
        server.start(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            port=free_port(),
            is_ready=lambda: False,
            timeout_s=0.1,
        )
    assert not server.alive
    assert server.pid is None


def test_stop_kills_a_program_that_ignores_the_request(tmp_path: Path) -> None:
    """SIGTERM first, SIGKILL after the bound; a second stop does nothing."""
    server, started = ServerProcess("Thing", tmp_path / "thing.log"), tmp_path / "started"
    server.start(
        [sys.executable, "-c", IGNORES_SIGTERM, str(started)],
        port=free_port(),
        is_ready=started.exists,
        timeout_s=10,
    )
    assert server.alive
    start_s = time.monotonic()
    server.stop(timeout_s=0.2)
    assert not server.alive
    assert time.monotonic() - start_s < 5
    server.stop(timeout_s=0.2)


def test_two_programs_never_share_a_folder(tmp_path: Path) -> None:
    """The lock goes with the program's life: refused while it runs, free once it is killed."""
    args = [sys.executable, "-c", "import time; time.sleep(60)"]
    first = ServerProcess("Thing", tmp_path / "thing.log")
    second = ServerProcess("Thing", tmp_path / "thing.log")
    first.start(args, port=free_port(), is_ready=lambda: True, timeout_s=10)
    try:
        with pytest.raises(ServiceStartError, match="another one is running"):
            second.start(args, port=free_port(), is_ready=lambda: True, timeout_s=10)
        first.kill()
        second.start(args, port=free_port(), is_ready=lambda: True, timeout_s=10)
    finally:
        first.kill()
        second.kill()


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The kernel's death signal comes with the forking thread's end; ours must be a lasting one."""
    server = ServerProcess("Thing", tmp_path / "thing.log")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(
            server.start,
            [sys.executable, "-c", "import time; time.sleep(60)"],
            port=free_port(),
            is_ready=lambda: True,
            timeout_s=10,
        ).result()
    try:
        with pytest.raises(ServiceStartError, match="another one is running"):
            ServerProcess("Thing", tmp_path / "thing.log").start(
                ["/bin/true"], port=free_port(), is_ready=lambda: True, timeout_s=10
            )
        assert server.alive
    finally:
        server.kill()
