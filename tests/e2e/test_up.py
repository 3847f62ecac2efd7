"""`headrace up` as a user runs it: it answers, survives a kill, and leaves nothing behind."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.schemas.settings import child_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

READY_TIMEOUT_S = 90.0
GONE_TIMEOUT_S = 10.0


@dataclass
class RunningUp:
    """A `headrace up` that said it is ready."""

    process: Process
    lines: list[str]

    def value(self, name: str) -> str:
        """What the ready lines say about `name`."""
        (found,) = [line for line in self.lines if line.startswith(name)]
        return found.removeprefix(name).strip()

    def children(self) -> list[int]:
        """Process ids of what it started."""
        return [pid for pid, parent in parents().items() if parent == self.process.pid]

    def worker(self) -> int:
        """The process id of one of its workers."""
        return next(pid for pid in self.children() if b"\0worker\0" in command_of(pid))

    async def send(self, prefix: str, *args: str) -> tuple[int, str]:
        """Ask it; returns exit code and what was printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.deploy.cli", "send", *args),
            env=child_environment(kafka=self.value("Kafka"), topic_prefix=prefix),
            stdout=PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode()


def parents() -> dict[int, int]:
    """Parent of each process that is not a zombie."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if state != "Z":
            found[int(path.parent.name)] = int(parent)
    return found


def command_of(pid: int) -> bytes:
    """The words of a process's command line, each followed by a zero byte."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def all_gone(pids: list[int]) -> bool:
    """Whether these processes end within the bound."""
    try:
        async with asyncio.timeout(GONE_TIMEOUT_S):
            while True:
                if not set(pids) & set(parents()):
                    return True
                await asyncio.sleep(0.1)
    except TimeoutError:
        return False


@asynccontextmanager
async def up(model: Path, prefix: str, *flags: str) -> AsyncIterator[RunningUp]:
    """A ready `headrace up` on free ports; killed at the end if the test did not stop it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "up", "--http-port", "0", *flags),
        env=child_environment(model=model, topic_prefix=prefix, group=prefix),
        stdout=PIPE,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not lines or not lines[-1].startswith("stop"):
                line = await process.stdout.readline()
                assert line, f"it ended: {lines}"
                lines.append(line.decode().rstrip())
        yield RunningUp(process, lines)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_up_answers_survives_a_kill_and_leaves_no_process(
    tiny_model_dir: Path, topic_prefix: str
) -> None:
    """Two workers: text comes, also after one is killed; Ctrl-C ends all with exit code 0."""
    async with up(tiny_model_dir, topic_prefix, "--ephemeral", "--workers", "2") as running:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", running.value("chat page"))
        code, text = await running.send(topic_prefix, "Hello", "--max-tokens", "8", "--seed", "1")
        assert code == 0
        assert text.strip()

        os.kill(running.worker(), signal.SIGKILL)
        again = await running.send(topic_prefix, "Hello", "--max-tokens", "8", "--seed", "1")
        assert again == (0, text)

        children = running.children()
        running.process.send_signal(signal.SIGINT)
        await running.process.wait()
        assert running.process.returncode == 0
        assert await all_gone(children)


async def test_killing_up_leaves_no_process(tiny_model_dir: Path, topic_prefix: str) -> None:
    """`kill -9`: the kernel ends what it started."""
    async with up(tiny_model_dir, topic_prefix, "--ephemeral") as running:
        children = running.children()
        assert len(children) >= 2
        running.process.kill()
        assert await all_gone(children)


async def test_conversations_survive_a_restart(
    tiny_model_dir: Path, topic_prefix: str, tmp_path: Path
) -> None:
    """The same data folder: the second run knows the session, so it has one turn more. And workers
    that end in order say nothing of libraries' leaks.
    """
    flags = ("--data-dir", str(tmp_path / "up"))
    ask = ("Hello", "--session", "s1", "--max-tokens", "4", "--json")
    prompts = []
    for _ in range(2):
        async with up(tiny_model_dir, topic_prefix, *flags) as running:
            code, text = await running.send(topic_prefix, *ask)
            assert code == 0
            prompts.append(int(re.findall(r'"prompt_tokens":(\d+)', text)[-1]))
            running.process.send_signal(signal.SIGTERM)
            assert await running.process.wait() == 0
    assert prompts[1] > prompts[0]
    assert "leaked" not in (tmp_path / "up" / "worker-1.log").read_text()


async def test_two_on_one_data_folder_are_refused(
    tiny_model_dir: Path, topic_prefix: str, tmp_path: Path
) -> None:
    """One clear line; the first goes on."""
    flags = ("--data-dir", str(tmp_path / "up"))
    async with up(tiny_model_dir, topic_prefix, *flags) as running:
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.deploy.cli", "up", *flags), stderr=PIPE
        )
        _, err = await second.communicate()
        assert second.returncode == 1
        assert b"another `headrace up` uses" in err
        assert running.process.returncode is None
        children = running.children()
        running.process.send_signal(signal.SIGINT)
        assert await running.process.wait() == 0
        assert await all_gone(children)
