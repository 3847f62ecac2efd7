"""A worker whose engine computes nothing: all of the product but the model. For bench_pipeline.

Argument: JSON of a FakeWork.
"""

import json
import sys

from benchmarks.lib.fake_runner import FakeRunner, FakeWork
from headrace.deploy.logging import set_up_logging
from headrace.schemas.settings import load_settings
from headrace.streams import worker

FAKE_VOCAB_SIZE = 21_000


def main(work: FakeWork) -> int:
    settings = load_settings()
    set_up_logging(settings)
    runner = FakeRunner(work, vocab_size=FAKE_VOCAB_SIZE)
    vars(worker)["served_runner"] = lambda settings, loaded: runner
    return worker.run_worker(settings)


if __name__ == "__main__":
    sys.exit(main(FakeWork(**json.loads(sys.argv[1]))))
