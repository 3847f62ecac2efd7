"""Logging of the tests' process, kept as it was while a test runs commands in it.

A command sets logging up for its whole process; the tests share one, in an order that varies.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog


@contextmanager
def kept_logging() -> Iterator[None]:
    """Levels, handlers and structlog are as before once the block is left."""
    configure = structlog.configure

    def configure_for_now(**options: Any) -> None:
        # a logger that is first used here would keep this configuration for ever
        configure(**{**options, "cache_logger_on_first_use": False})

    root = logging.getLogger()
    handlers, levels = list(root.handlers), _levels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", configure_for_now)
        try:
            yield
        finally:
            structlog.reset_defaults()
            root.handlers[:] = handlers
            for name, level in _levels().items():
                if level != levels.get(name, logging.NOTSET):
                    logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


def _levels() -> dict[str, int]:
    known = logging.Logger.manager.loggerDict
    named = {name: it.level for name, it in known.items() if isinstance(it, logging.Logger)}
    return {"root": logging.getLogger().level, **named}
