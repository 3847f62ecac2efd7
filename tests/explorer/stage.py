"""The stand-ins for what the worker's code imports: clocks, clients, engine.

Whose code runs now is `STAGE.worker`; each stand-in is that worker's own. Names are replaced in
every module of headrace.streams that has them, so that code may move between files.
"""

import gc
import sys
import time as real_time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

import headrace.streams.worker  # noqa: F401 - so that every module of a worker is loaded

if TYPE_CHECKING:
    from tests.explorer.worker import SimWorker

PACKAGE = "headrace.streams"


class Stage:
    """Whose code runs now."""

    worker: "SimWorker | None" = None

    def actor(self) -> "SimWorker":
        """That worker."""
        assert self.worker is not None, "this code runs in a worker"
        return self.worker


STAGE = Stage()


class StageTime:
    """What `import time` gives while schedules run: the clocks of the worker whose code runs."""

    def monotonic(self) -> float:
        return STAGE.actor().monotonic_s()

    def time(self) -> float:
        return STAGE.actor().wall_s()

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


class StageOs:
    """What `import os` gives: workers are processes of their own."""

    def getpid(self) -> int:
        return STAGE.actor().number

    def __getattr__(self, name: str) -> Any:
        import os

        return getattr(os, name)


def _stand_ins() -> dict[str, Any]:
    return {
        "time": StageTime(),
        "os": StageOs(),
        "connect": lambda url: STAGE.actor().redis,
        "build_app": lambda settings, lease: STAGE.actor().make_app(lease),
        "connect_agents": lambda app, topics, intake: app.take_in(topics, intake),
        "build_engine": lambda settings, loaded, runner, *, on_outputs, on_death=None: (
            STAGE.actor().make_engine(on_outputs)
        ),
        "served_model": lambda settings, loaded: STAGE.actor().model,
        "keep_through_outages": lambda producer: None,
        "AIOKafkaProducer": lambda **options: STAGE.actor().make_producer(),
        "AIOKafkaConsumer": lambda **options: STAGE.actor().make_looking_consumer(),
    }


def modules() -> list[Any]:
    """The worker's own."""
    return [
        module
        for name, module in sorted(sys.modules.copy().items())
        if name.startswith(PACKAGE + ".") and module is not None
    ]


@contextmanager
def replaced(stand_ins: dict[str, Any]) -> Iterator[None]:
    """Each name means its stand-in in every module that has it. Raises: KeyError if none has."""
    saved: list[Callable[[], None]] = []
    try:
        for name, stand_in in stand_ins.items():
            having = [module for module in modules() if hasattr(module, name)]
            if not having:
                raise KeyError(f"no module of {PACKAGE} has {name}")
            saved += [_put(module, name, stand_in) for module in having]
        yield
    finally:
        for put_back in reversed(saved):
            put_back()


def _put(module: Any, name: str, value: Any) -> Callable[[], None]:
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


@contextmanager
def staged() -> Iterator[None]:
    """While it is entered, workers can be made and run, and log nothing."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        with replaced(_stand_ins()), warnings.catch_warnings():
            # a process that is killed while it closes leaves what it had still to close
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
            gc.collect()  # here, where that is known
    finally:
        structlog.configure(**before)
