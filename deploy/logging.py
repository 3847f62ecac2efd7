"""Logs of our processes: structlog and the standard library in one format, on stderr.

Owns the root logger's handler. Masks passwords in URLs and fields that hold credentials.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from headrace.deploy.console import stderr_console
from headrace.schemas.settings import Settings

_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")
_QUERY_KEY = re.compile(r"(?<=[?&])(api_key|[^=&\s]*%[^=&\s]*)=[^&\s]+")
"""The name may be written with %: servers decode it before they compare."""
_SECRET_FIELDS = frozenset({"password", "authorization", "api_key", "sasl_plain_password"})
_MASK = "***"

_CLIENT_LIBRARIES = (
    *("aiokafka", "asyncio", "faust", "httpx", "kafka", "matplotlib", "mode", "uvicorn"),
)

_TELL_ALL = ("aiokafka", "kafka", "uvicorn.error", "websockets", "httpcore")
"""At debug these write whole requests, headers and frames: passwords, keys, what people ask."""

REPEAT_INTERVAL_S = 10.0
"""While Kafka is away its client says so a hundred times a second."""


MAX_TEXTS = 1000


class NotAgain(logging.Filter):
    """Lets a warning of a client library through once in REPEAT_INTERVAL_S, then with how often it
    came meanwhile. Told apart by the text before its arguments are put in.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is written."""
        library = record.name.partition(".")[0]
        if library not in _CLIENT_LIBRARIES or record.exc_info:
            return True
        what = (record.name, str(record.msg))
        since_s, num_more = self._seen.get(what, (-REPEAT_INTERVAL_S, 0))
        if record.created - since_s < REPEAT_INTERVAL_S:
            self._seen[what] = (since_s, num_more + 1)
            return False
        if len(self._seen) >= MAX_TEXTS:
            self._seen.clear()
        self._seen[what] = (record.created, 0)
        if num_more:
            record.msg = f"{record.msg} (and {num_more} times since)"
        return True


def set_up_logging(settings: Settings, *, errors_only: bool = False) -> None:
    """Send all logs of this process to stderr in the format and from the level of `settings`.

    Client libraries give warnings only, unless the level is debug. `errors_only`: for commands
    that a person runs, which report failures themselves: not even those.
    """
    chain: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        mask_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *chain[:4],
            mask_secrets,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=chain,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(settings.log_format),
            ],
        )
    )
    if settings.log_level != "debug":
        handler.addFilter(NotAgain())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    if settings.log_level != "debug":
        for name in _CLIENT_LIBRARIES:
            logging.getLogger(name).setLevel(logging.CRITICAL if errors_only else logging.WARNING)
    else:
        for name in _TELL_ALL:
            logging.getLogger(name).setLevel(logging.INFO)


def mask_secrets(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor: no credential leaves this process through a log line."""
    for name, value in event.items():
        if name.lower() in _SECRET_FIELDS:
            event[name] = _MASK
        elif isinstance(value, str):
            event[name] = _QUERY_KEY.sub(rf"\1={_MASK}", _URL_PASSWORD.sub(rf"\1:{_MASK}@", value))
    return event


def _renderers(log_format: str) -> list[structlog.typing.Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    console = stderr_console()
    colours = console.is_terminal and not console.no_color
    return [
        structlog.dev.ConsoleRenderer(
            colors=colours, exception_formatter=structlog.dev.plain_traceback
        )
    ]
