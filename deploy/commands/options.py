"""Flags made from the settings' fields: a flag, its variable and its check are one thing."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from headrace.deploy.logging import set_up_logging
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import PREFIX, Settings, load_settings

LOG = ("log_level", "log_format")
KAFKA = (
    "kafka",
    "topic_prefix",
    "kafka_security_protocol",
    "kafka_sasl_mechanism",
    "kafka_username",
    "kafka_ca_file",
    *LOG,
)
ENGINE = (
    "model",
    "dtype",
    "quantize",
    "device",
    "max_batch_size",
    "batch_window_ms",
    "max_batch_tokens",
    "kv_pool_mb",
    "kv_to_redis",
    "threads",
)
WORKER = (
    *("redis", "group", "metrics_port", "drain_timeout_s", "session_timeout_s"),
    *("answer_prefix", "group_instance_id", "journal_ttl_s", "session_ttl_s", "max_request_bytes"),
    "traces",
)
LIMITS = ("rate_limit_requests", "rate_limit_tokens")
HTTP = (
    *("http_host", "http_port", "grpc_port", "tls_cert_file", "tls_key_file", "recent_log_mb"),
    *("api_keys_file", "query_api_key", "allowed_origins", *LIMITS),
)

WORKER_FLAGS = (*KAFKA, *WORKER, *ENGINE)
GATEWAY_FLAGS = (*HTTP, *KAFKA, "group", "model", "drain_timeout_s", "max_request_bytes")
OF_ONE_WORKER = ("metrics_port", "group_instance_id", "answer_prefix")
"""`up` has several, and a gateway that reads their answers."""

UP_FLAGS = tuple(
    name for name in dict.fromkeys((*HTTP, *WORKER_FLAGS)) if name not in OF_ONE_WORKER
)

Command = Callable[..., int]


def with_settings(*names: str, errors_only: bool = False) -> Callable[[Command], Command]:
    """Give a command the flags of these `Settings` fields; it gets `settings`, with logging set up.

    `errors_only`: see `set_up_logging`.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.name != "settings"]
        parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
        parameters += [_flag(name) for name in names]

        @functools.wraps(command)
        def run(**values: Any) -> int:
            settings = _load({name: values.pop(name) for name in names})
            set_up_logging(settings, errors_only=errors_only)
            return command(settings=settings, **values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        return run

    return decorate


def flag_name(name: str) -> str:
    """`--batch-window-ms` for `batch_window_ms`."""
    return "--" + name.replace("_", "-")


def examples(*lines: str) -> str:
    """The end of a command's help text."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _load(flags: dict[str, Any]) -> Settings:
    try:
        return load_settings(**flags)
    except SettingsError as problem:
        text = str(problem)
        for name in (name for name, value in flags.items() if value is not None):
            text = text.replace(f"{PREFIX}{name.upper()}:", f"{flag_name(name)}:")
        raise SettingsError(text) from problem


def _flag(name: str) -> inspect.Parameter:
    """An optional flag, text for now: `Settings` says what is wrong with a value."""
    field = Settings.model_fields[name]
    text = field.description or ""
    if field.default is not None:
        text = f"{text}; default {field.default}"
    option = typer.Option(flag_name(name), help=text, metavar=f"<{values_of(name)}>")
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


def values_of(name: str) -> str:
    """What a setting may be, in a word: its choices, or `int`, `float`, `str`."""
    annotation = Settings.model_fields[name].annotation
    for choice in (annotation, *get_args(annotation)):
        if get_origin(choice) is Literal:
            return "|".join(get_args(choice))
        if choice in (int, float):
            return str(choice.__name__)
    return "str"
