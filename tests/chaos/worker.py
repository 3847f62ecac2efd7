"""`headrace worker`, with steps that take their time, and one text that ends the process.

A tiny model answers within a few flushes; a pause in each step makes answers that last seconds and
cost no CPU time. The deadly text stands for a request that crashes native code.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.models.batch import RowInput, StepLogits, StepRunner
from tests.unit.models.runners import RunnerAround
from tests.wrapped_worker import run_wrapped

DEADLY_TEXT = "crash-me-now "


class PacedRunner(RunnerAround):
    """Another runner, `step_s` slower; SIGSEGV to itself at a row whose text is `deadly`."""

    def __init__(self, inside: StepRunner, tokenizer: Any, *, step_s: float, deadly: str) -> None:
        super().__init__(inside)
        self._tokenizer, self._step_s, self._deadly = tokenizer, step_s, deadly

    def run(self, rows: Sequence[RowInput]) -> StepLogits:
        if any(self._kills(row.token_ids) for row in rows):
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(self._step_s)
        return self.inside.run(rows)

    def _kills(self, token_ids: Sequence[int]) -> bool:
        return len(token_ids) > 1 and self._deadly in self._tokenizer.decode(list(token_ids))


if __name__ == "__main__":
    paced = partial(PacedRunner, step_s=float(sys.argv[1]), deadly=DEADLY_TEXT)
    sys.exit(run_wrapped(paced))
