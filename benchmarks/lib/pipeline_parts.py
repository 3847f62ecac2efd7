"""Kafka, Valkey, a worker, the load client and the engine alone, as processes of bench_pipeline."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from benchmarks.lib.fake_runner import FakeWork
from benchmarks.lib.process import ROOT, STOP_TIMEOUT_S, ChildFailedError
from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.deploy.processes import free_port
from headrace.deploy.topics import ensure_topics
from headrace.models.cache import dying_with_us
from headrace.schemas.settings import Settings, child_environment

START_TIMEOUT_S = 120.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Parts:
    """Everything under measurement, started; it ends with the exit stack.

    Raises: ChildFailedError when a part does not start.
    """

    def __init__(
        self, given: dict[str, Any], work: FakeWork | None, folder: Path, stack: ExitStack
    ) -> None:
        kafka, valkey = EmbeddedKafka(folder / "kafka"), EmbeddedValkey(folder / "valkey")
        for service in (kafka, valkey):
            stack.callback(service.stop)
            service.start()
        settings = Settings(kafka=kafka.bootstrap, redis=valkey.url, **given)
        asyncio.run(ensure_topics(settings))
        environment = child_environment(kafka=kafka.bootstrap, redis=valkey.url, **given)
        environment["TOKENIZERS_PARALLELISM"] = "false"
        fake = json.dumps(asdict(work)) if work else "null"
        self.engine = Child("pipeline_engine", fake, environment=environment)
        stack.callback(self.engine.close)
        worker = stack.enter_context(_worker(fake if work else None, folder, environment))
        topics = settings.topics
        self.client = Child(
            "pipeline_client",
            settings.kafka,
            topics.requests,
            topics.responses,
            environment=environment,
        )
        stack.callback(self.client.close)
        assert kafka.pid is not None and valkey.pid is not None  # noqa: PT018
        self._stats = {
            "worker": Path(f"/proc/{worker}/stat"),
            "worker_loop": Path(f"/proc/{worker}/task/{worker}/stat"),
            "kafka": Path(f"/proc/{kafka.pid}/stat"),
            "valkey": Path(f"/proc/{valkey.pid}/stat"),
        }

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each process of the pipeline, and of the worker's event loop."""
        return {name: _cpu_s(path) for name, path in self._stats.items()}


class Child:
    """One of our modules that answers a JSON line on stdin with another."""

    def __init__(self, module: str, *args: str, environment: dict[str, str]) -> None:
        self._module = module
        self._process = subprocess.Popen(
            dying_with_us([sys.executable, "-m", f"benchmarks.lib.{module}", *args]),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Raises: ChildFailedError when it ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildFailedError(f"{self._module} ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it: at the end of its stdin, by force if it takes longer than 20 s."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def _worker(fake: str | None, folder: Path, environment: dict[str, str]) -> Iterator[int]:
    """A worker that is in the group; yields its process id."""
    port, log_path = free_port(), folder / "worker.log"
    command = [sys.executable, "-m", "headrace.deploy.cli", "worker"]
    if fake is not None:
        command = [sys.executable, "-m", "benchmarks.lib.pipeline_worker", fake]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            dying_with_us(command),
            cwd=ROOT,
            env=environment | {"HEADRACE_METRICS_PORT": str(port)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise ChildFailedError(f"the worker did not start: {log_path.read_text()[-3000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
