"""Workers that are added and drained while others run, on processes that stand for workers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.consumers.lag import Lag, PartitionLag
from headrace.deploy.autoscale.fleet import Fleet, Member
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.autoscale.scaler import Scaler
from headrace.deploy.processes import ServiceStartError, free_port
from headrace.deploy.supervisor import Program
from headrace.schemas.errors import UnavailableError
from headrace.schemas.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

# Answers every GET with 200 and some metrics after `delay` seconds; SIGTERM ends it.
SERVER = """
import http.server, signal, sys, time
port, delay = int(sys.argv[1]), float(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"headrace_num_requests_running 1.0\\n")
time.sleep(delay)
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


class Stopped(Exception):
    """The owner of the fleet ends."""


def programs(
    folder: Path, *, delay_s: float = 0.0, script: str = SERVER
) -> Callable[[int], Program]:
    """What makes the worker of a number."""

    def make(number: int) -> Program:
        port = free_port()
        args = [sys.executable, "-c", script, str(port), str(delay_s)]
        return Program(f"worker {number}", args, folder / f"worker-{number}.log", port)

    return make


def fleet_of(folder: Path, said: list[str] | None = None, **more: object) -> Fleet:
    notes: list[str] = [] if said is None else said
    make = programs(folder, **more)  # type: ignore[arg-type]
    return Fleet(make, stop_timeout_s=5, on_note=notes.append)


async def gone(member: Member) -> None:
    """Wait for the end of a member that was drained."""
    assert member.task is not None
    await asyncio.wait({member.task}, timeout=10)
    assert member.task.cancelled()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@asynccontextmanager
async def ended_at_last() -> AsyncIterator[asyncio.TaskGroup]:
    """A group that ends as that of `up` does: everything in it is cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            raise Stopped
    except* Stopped:
        pass


async def test_a_worker_is_drained_while_another_goes_on(tmp_path: Path) -> None:
    """It is not counted from then on, and its number is given again."""
    fleet = fleet_of(tmp_path)
    pids: list[int | None] = []
    async with ended_at_last() as tasks:
        first, second = fleet.add(tasks), fleet.add(tasks)
        assert (fleet.workers.ready, len(fleet.workers.starting_since_s)) == (0, 2)
        await first.supervised.ready.wait()
        await second.supervised.ready.wait()
        assert (fleet.workers.ready, fleet.workers.count) == (2, 2)
        assert 0 < fleet.expected_start_s() < 10
        pids = [first.supervised.pid, second.supervised.pid]
        fleet.drain(first)
        assert (fleet.workers.count, fleet.workers.draining) == (1, 1)
        await gone(first)
        assert list(fleet.members) == [second]
        assert fleet.add(tasks).number == 1
    assert fleet.members == ()
    assert all(pid is not None and is_gone(pid) for pid in pids)


async def test_a_worker_that_never_began_leaves_no_trace(tmp_path: Path) -> None:
    """Drained before its task ran, and drained while it starts."""
    fleet = fleet_of(tmp_path, delay_s=60)
    async with asyncio.TaskGroup() as tasks:
        member = fleet.add(tasks)
        fleet.drain(member)
        await gone(member)
        assert fleet.members == ()
        member = fleet.add(tasks)
        async with asyncio.timeout(10):
            while member.supervised.pid is None:  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.02)
        pid = member.supervised.pid
        fleet.drain(member)
        await gone(member)
        assert is_gone(pid)


async def test_a_stop_during_a_drain_waits_for_the_drain(tmp_path: Path) -> None:
    """The second cancel must not leave the process behind."""
    stubborn = SERVER.replace("sys.exit(0)", "(time.sleep(0.5), sys.exit(0))")
    fleet = fleet_of(tmp_path, script=stubborn)
    async with ended_at_last() as tasks:
        member = fleet.add(tasks)
        await member.supervised.ready.wait()
        pid = member.supervised.pid
        fleet.drain(member)
        await asyncio.sleep(0)
    assert pid is not None
    assert is_gone(pid)


async def test_a_start_that_fails_is_tried_again_unless_it_must_not_fail(tmp_path: Path) -> None:
    """A worker that is added later does not end the others; one of the first does."""
    said: list[str] = []
    fleet = fleet_of(tmp_path, said, script="raise SystemExit(3)")
    async with asyncio.TaskGroup() as tasks:
        member = fleet.add(tasks)
        async with asyncio.timeout(10):
            while not said:  # noqa: ASYNC110 - it is said once the process has ended
                await asyncio.sleep(0.02)
        assert len(fleet.workers.starting_since_s) == 1
        fleet.drain(member)
    assert "worker 1 ended; it is started again in 1 s" in said[0]
    with pytest.raises(ExceptionGroup) as failure:
        async with asyncio.TaskGroup() as tasks:
            fleet.add(tasks, must_start=True)
    assert isinstance(failure.value.exceptions[0], ServiceStartError)


class ScriptedLag:
    """A lag of so many tokens, or none."""

    def __init__(self) -> None:
        self.tokens: int | None = 0
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True

    async def read(self) -> Lag:
        if self.tokens is None:
            raise UnavailableError("Kafka", 1.0)
        one = PartitionLag("r.requests", 0, self.tokens // 100, 0.0, self.tokens, None, 0, 100)
        return Lag(
            (one, PartitionLag("r.requests", 1, 0, 0.0, 0, None, 0, 0)),
            asyncio.get_running_loop().time(),
        )


async def test_the_scaler_adds_says_why_and_stays_blind_without_harm(tmp_path: Path) -> None:
    """One line for each change, and one for an outage however long it is."""
    said: list[str] = []
    fleet, lag = fleet_of(tmp_path), ScriptedLag()
    scaler = Scaler(Policy(0, 4), fleet, lag, Settings(topic_prefix="r", max_batch_size=8))
    async with ended_at_last() as tasks:
        assert (await scaler.step(tasks, said.append)).desired == 0
        lag.tokens = 4200
        assert (await scaler.step(tasks, said.append)).desired == 2
        lag.tokens = None
        for _ in range(3):
            assert (await scaler.step(tasks, said.append)).desired == 2
        assert len(fleet.members) == 2
    assert said == [
        "0 -> 2 workers: 4,200 tokens waiting, 21 s at 200 tok/s each",
        "the lag is unknown, workers stay as they are: Kafka gave no answer within 1 s",
    ]
