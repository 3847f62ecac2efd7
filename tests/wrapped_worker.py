"""`headrace worker` in this process, its step runner wrapped by a test's."""

from collections.abc import Callable
from typing import Any

from headrace.models.batch import StepRunner

Wrap = Callable[[StepRunner, Any], StepRunner]
"""From the runner, and the model's tokenizer, to the one that the engine gets."""


def run_wrapped(wrap: Wrap) -> int:
    """Run the worker that the environment describes; returns its exit code."""
    from headrace.models import loading

    make_runner = loading.make_runner

    def wrapped(loaded: loading.LoadedModel, **sizes: int) -> StepRunner:
        return wrap(make_runner(loaded, **sizes), loaded.tokenizer)

    loading.make_runner = wrapped  # before anything imports the name
    from headrace.deploy.cli import run

    return run(["worker"])
