"""Who is alive: an engine that ends steps, and records that are read when there is room."""

import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

from headrace.streams.liveness import STALL_LIMIT_S, Liveness


@dataclass
class Engine:
    """As far as it got."""

    alive: bool = True
    num_running: int = 0
    last_step_s: float | None = None


NOW_S = 1000.0
LONG_AGO_S = NOW_S - STALL_LIMIT_S - 1


@pytest.mark.parametrize(
    ("engine", "unread_s", "problem"),
    [
        (Engine(), 0.0, None),
        (Engine(alive=False), 0.0, "the engine is dead"),
        (Engine(num_running=1, last_step_s=NOW_S - 1), 0.0, None),
        (Engine(num_running=0, last_step_s=LONG_AGO_S), 0.0, None),
        (Engine(num_running=1, last_step_s=LONG_AGO_S), 0.0, "no engine step for 61 s"),
        (Engine(), 59.0, None),
        (Engine(), 61.0, "a record is there and was not read for 61 s"),
    ],
)
def test_alive_is_who_gets_on(engine: Engine, unread_s: float, problem: str | None) -> None:
    """Case A15: an open port is no sign of life."""
    assert Liveness(engine, lambda now_s: unread_s).problem(NOW_S) == problem


async def test_what_is_not_alive_is_reported_once() -> None:
    """The one who listens ends the process."""
    found: list[str] = []
    await Liveness(Engine(alive=False), lambda now_s: 0.0).watch(found.append)
    assert found == ["the engine is dead"]


def test_a_process_whose_event_loop_stands_still_ends() -> None:
    """Case A2: also where the interpreter's lock is held, so that no thread of ours could do it."""
    program = (
        "import asyncio\n"
        "from headrace.streams import liveness\n"
        "liveness.STALL_LIMIT_S = 0.2\n"
        "async def main():\n"
        "    task = asyncio.ensure_future(liveness.end_with_the_loop())\n"
        "    await asyncio.sleep(0)\n"
        "    print('standing still', flush=True)\n"
        "    while True: pass\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=15, check=False
    )
    assert ended.returncode == -signal.SIGALRM
    assert "standing still" in ended.stdout
    assert "in main" in ended.stderr
