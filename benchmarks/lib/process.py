"""The outside of a process that is measured: starts it, asks it, and sees what others computed
meanwhile.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.lib.child import Run
from benchmarks.lib.cpu_time import OthersClock
from headrace.models.cache import dying_with_us
from headrace.schemas.settings import child_environment

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 20.0
CLOCK_GRAIN_S = 0.05


class ChildFailedError(Exception):
    """A measured process ended or answered nonsense; its own message is in its log."""


class NotInstalledError(Exception):
    """The engine's library is not in that environment."""


@dataclass(frozen=True)
class Spec:
    """How to start an engine.

    `python` is the interpreter of the environment that has its library.
    """

    name: str
    module: str
    config: dict[str, Any]
    python: Path = Path(sys.executable)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Repetition:
    """A run, how long its process was busy with it, and the CPU time that others took meanwhile."""

    run: Run
    elapsed_s: float
    others_s: float

    @property
    def is_disturbed(self) -> bool:
        """Whether others took more than 6 % of a core, and more than the clock's grain."""
        return self.others_s > CLOCK_GRAIN_S + 0.06 * self.elapsed_s


class ChildEngine:
    """A measured engine in its own process; `startup_s` is from its start to its readiness,
    imports included.

    Raises: NotInstalledError; ChildFailedError, also from `run`.
    """

    def __init__(self, spec: Spec, log_path: Path) -> None:
        self.name, self._log_path = spec.name, log_path
        self._log: IO[bytes] = log_path.open("ab")
        started_s = time.perf_counter()
        self._process = subprocess.Popen(
            dying_with_us([str(spec.python), "-m", spec.module, json.dumps(spec.config)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env=child_environment() | {"TOKENIZERS_PARALLELISM": "false", **spec.environment},
            text=True,
        )
        try:
            ready = self._answer()
        except ChildFailedError:
            self.close()
            raise
        self.startup_s = time.perf_counter() - started_s
        if "not_installed" in ready:
            self.close()
            raise NotInstalledError(f"{spec.name}: no module {ready['not_installed']}")
        self.build_s: float = ready["build_s"]
        self.versions: dict[str, str] = ready["versions"]

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Repetition:
        """Have the workload run once."""
        stdin = self._process.stdin
        assert stdin is not None
        clock, started_s = OthersClock(self._process.pid), time.perf_counter()
        stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
        stdin.flush()
        run = Run(**self._answer())
        if run.num_tokens != len(prompts) * new_tokens:
            raise ChildFailedError(f"{self.name} gave {run.num_tokens} tokens")
        return Repetition(run, time.perf_counter() - started_s, clock.elapsed_s())

    def close(self) -> None:
        """End the process: at the end of its stdin, by force if it takes longer than 20 s."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise ChildFailedError(f"{self.name} ended, see {self._log_path}")
        answer: dict[str, Any] = json.loads(line)
        return answer
