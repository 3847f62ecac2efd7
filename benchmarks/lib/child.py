"""The inside of a process that is measured: answers JSON lines on stdin with JSON lines on stdout.

It only uses the standard library, because it also runs in other engines' environments. Between two
questions the process sleeps in a read, so that it does not disturb the engine that is measured.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Run:
    """One run of a workload.

    Units: `token_times_s` holds, for each request, when each of its tokens was there, from the
        start of the run; empty where the engine does not say. `detail` is the engine's own.
    """

    wall_s: float
    num_tokens: int
    token_times_s: list[list[float]] = field(default_factory=list)
    detail: dict[str, float] = field(default_factory=dict)


class Measured(Protocol):
    """An engine that is ready to run."""

    versions: dict[str, str]

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """Generate exactly `new_tokens` greedy tokens for each prompt, all at once."""


Config = dict[str, Any]


def serve(build: Callable[[Config], Measured]) -> None:
    """Build the engine from the JSON of the first argument, then answer until stdin ends.

    What libraries print goes to stderr.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    started_s = time.perf_counter()
    try:
        engine = build(json.loads(sys.argv[1]))
    except ModuleNotFoundError as error:
        answer({"not_installed": error.name})
        return
    answer({"build_s": time.perf_counter() - started_s, "versions": engine.versions})
    for line in sys.stdin:
        question = json.loads(line)
        answer(asdict(engine.run(question["prompts"], question["new_tokens"])))
