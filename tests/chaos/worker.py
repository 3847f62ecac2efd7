"""`headrace worker`, with steps that take their time, and one text that ends the process.

A tiny model answers within a few flushes; a pause in each step makes answers that last seconds and
cost no CPU time. The deadly text stands for a request that crashes native code.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from headrace.models.batch import KVFormat, RowInput, StepLogits, StepRunner

DEADLY_TEXT = "crash-me-now "


class PacedRunner:
    """Another runner, `step_s` slower; SIGSEGV to itself at a row whose text is `deadly`."""

    def __init__(self, runner: StepRunner, tokenizer: Any, *, step_s: float, deadly: str) -> None:
        self._runner, self._tokenizer = runner, tokenizer
        self._step_s, self._deadly = step_s, deadly

    @property
    def kv_format(self) -> KVFormat:
        return self._runner.kv_format

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        if any(self._kills(row.token_ids) for row in rows):
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(self._step_s)
        return self._runner.run(rows)

    def _kills(self, token_ids: Sequence[int]) -> bool:
        return len(token_ids) > 1 and self._deadly in self._tokenizer.decode(list(token_ids))

    def read_block(self, block_id: int) -> bytes:
        return self._runner.read_block(block_id)

    def write_block(self, block_id: int, data: bytes | memoryview) -> None:
        self._runner.write_block(block_id, data)


def main(step_s: float) -> int:
    """Run the worker that the environment describes; returns its exit code."""
    from headrace.models import loading

    make_runner = loading.make_runner

    def paced(loaded: loading.LoadedModel, **sizes: int) -> StepRunner:
        runner = make_runner(loaded, **sizes)
        return PacedRunner(runner, loaded.tokenizer, step_s=step_s, deadly=DEADLY_TEXT)

    loading.make_runner = paced  # before anything imports the name
    from headrace.deploy.cli import run

    return run(["worker"])


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
