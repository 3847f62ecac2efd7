"""`headrace worker` that dies or stands still at a word of a prompt or at a key: what a fault of
native code, of the engine's thread, or of an agent does to the process.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from headrace.models.batch import RowInput, StepLogits, StepRunner
from headrace.schemas.request import Record
from headrace.schemas.settings import Settings
from tests.pipeline import WorkerProcess
from tests.unit.models.runners import RunnerAround
from tests.wrapped_worker import run_wrapped

SLOW_S = 2.5


class Prompt(StrEnum):
    """Words that end a step otherwise than by a result, or late."""

    EXIT = "exit the engine now"
    STAND_STILL = "stand still for ever"
    SLOW = "take your time"


class Key(StrEnum):
    """Record keys that end the agent of the request topic."""

    ERROR = "agent-error"
    CANCEL = "agent-cancel"


class DyingWorker(WorkerProcess):
    """The process; `stall_limit_s` is how long an engine may stand still."""

    def __init__(self, settings: Settings, folder: Path, *, stall_limit_s: float = 60.0) -> None:
        self._stall_limit_s = stall_limit_s
        super().__init__(settings, folder)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.dying_worker", str(self._stall_limit_s)]


class DyingRunner(RunnerAround):
    """Another runner, that heeds the words of `Prompt`."""

    def __init__(self, inside: StepRunner, tokenizer: Any) -> None:
        super().__init__(inside)
        self._tokenizer = tokenizer

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        for row in rows:
            text = self._tokenizer.decode(list(row.token_ids))
            if Prompt.EXIT in text:
                raise SystemExit(3)
            if Prompt.STAND_STILL in text:
                threading.Event().wait()
            if Prompt.SLOW in text:
                time.sleep(SLOW_S)
        return self.inside.run(rows)


def main(stall_limit_s: float) -> int:
    """Run the worker that the environment describes; returns its exit code."""
    from headrace.streams import liveness
    from headrace.streams.intake import Intake

    liveness.STALL_LIMIT_S = stall_limit_s
    take_request = Intake.take_request

    async def take_or_die(self: Intake, record: Record, now_s: float) -> None:
        if record.key == Key.ERROR.encode():
            raise RuntimeError("a bug in the agent")
        if record.key == Key.CANCEL.encode():
            raise asyncio.CancelledError
        await take_request(self, record, now_s)

    Intake.take_request = take_or_die  # type: ignore[method-assign]
    return run_wrapped(DyingRunner)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
