"""An engine that computes nothing, run as a measured process by the tests."""

import sys
import time
from collections.abc import Sequence

from benchmarks.lib.child import Config, Measured, Run, serve


class CountingEngine(Measured):
    """Says what it is asked to; prints noise, as libraries do."""

    def __init__(self, config: Config) -> None:
        if module := config.get("missing"):
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        if config.get("dies"):
            sys.exit(3)
        self.versions = {"counting": "1"}
        self._lost: int = config.get("lost", 0)

    def run(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        print("noise on stdout")
        started_s = time.perf_counter()
        while time.perf_counter() < started_s + 0.01:
            pass
        return Run(0.01, len(prompts) * new_tokens - self._lost, [[0.005, 0.01] for _ in prompts])


if __name__ == "__main__":
    serve(CountingEngine)
