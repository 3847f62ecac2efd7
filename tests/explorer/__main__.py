"""More schedules than the tests run: `python -m tests.explorer --schedules 50000 --seed 7`.

Prints each kind of violation once, with a schedule of which nothing can be left out, and what the
schedules reached. `--replay SEED` runs one of them again, `--bug NAME` leaves a rule out, `--kinds`
chooses the disturbances. Exit code 1: something is broken.
"""

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.explorer.bugs import BUGS
from tests.explorer.schedule import FAULTS, explore_one, replay, smaller
from tests.explorer.stage import staged

PROGRESS_S = 10.0


class Campaign:
    """Explores, and says what it finds."""

    def __init__(self, seed: str, kinds: list[str] | None) -> None:
        self._seed, self._kinds = seed, kinds
        self.found: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self._said_s = time.monotonic()

    def run(self, num_schedules: int) -> None:
        for number in range(num_schedules):
            self.explore(f"{self._seed}-{number}")
            if time.monotonic() - self._said_s > PROGRESS_S:
                self._said_s = time.monotonic()
                print(f"{number + 1} schedules, {self.found.total()} violations", flush=True)
        print(f"{num_schedules} schedules, {self.found.total()} violations: {dict(self.found)}")
        print("reached:", ", ".join(f"{k} {v}" for k, v in sorted(self.reached.items())))

    def explore(self, seed: str) -> None:
        """One schedule; the first of each kind of violation is made small and shown."""
        schedule, problem, world = explore_one(seed, self._kinds)
        self.reached.update(world.counts)
        if problem is None:
            return
        self.found[problem.kind] += 1
        if self.found[problem.kind] == 1:
            small = smaller(schedule, problem.kind)
            print(f"\n{seed}\n{small}\n{replay(small)}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explorer")
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--kinds", nargs="+", choices=sorted(FAULTS))
    parser.add_argument("--bug", choices=sorted(BUGS))
    parser.add_argument("--replay", metavar="SEED", help="of a schedule, as it was printed")
    options = parser.parse_args()
    campaign = Campaign(options.seed, options.kinds)
    with staged(), BUGS[options.bug]() if options.bug else nullcontext():
        if options.replay:
            campaign.explore(options.replay)
        else:
            campaign.run(options.schedules)
    return int(campaign.found.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
