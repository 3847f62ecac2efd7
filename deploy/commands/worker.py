"""`headrace worker`."""

import threading

import typer

from headrace.deploy.commands.options import WORKER_FLAGS, examples, with_settings
from headrace.models.native.build import build_in_advance
from headrace.schemas.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace worker",
        "headrace worker --model smollm2-135m --max-batch-size 16",
        "headrace worker --kafka broker:9092 --redis redis://store:6379/0 --metrics-port 9100",
    )
)
@with_settings(*WORKER_FLAGS)
def worker(settings: Settings) -> int:
    """Run one worker: one model on one device. SIGTERM drains it: what runs is handed over."""
    # beside the import of torch, which takes as long as compiling
    threading.Thread(target=build_in_advance, name="build-native", daemon=True).start()
    from headrace.streams.worker import run_worker  # loads torch

    return run_worker(settings)
