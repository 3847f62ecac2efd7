"""Settings of every process: `HEADRACE_*` variables, overridden by flags of the same name.

The only module that reads the environment. An unknown `HEADRACE_*` name or a bad value is an error.
"""

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.schemas.errors import SettingsError
from headrace.schemas.keys import Keys
from headrace.schemas.topics import Topics
from headrace.schemas.wire import explain

PREFIX = "HEADRACE_"
_FOREIGN = ("HEADRACE_TEST_", "HEADRACE_KIT_", "HEADRACE_BIN")
"""Names that belong to test kits and launchers, never to us."""

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_ORIGIN = re.compile(r"https?://[^/,\s*?#@]+", re.IGNORECASE)
_DEFAULT_PORT = re.compile(r"^(http://.*):80$|^(https://.*):443$")

RECORD_OVERHEAD_BYTES = 65_536
"""Headers and framing around the largest request."""


class Settings(BaseSettings):
    """One frozen set per process. Units are in the names; reasons stand by the values."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    kafka: str = Field("127.0.0.1:9092", description="bootstrap servers, host:port[,host:port]")
    redis: str = Field("redis://127.0.0.1:6379/0", description="redis://, rediss:// or unix:// URL")
    model: str = Field("smollm2-135m", min_length=1, description="alias, hub id or folder")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="number format of the weights; auto, on CPUs: bfloat16 where that is fast, "
        "else float32",
    )
    quantize: Literal["none", "int8"] = Field(
        "none", description="int8: linear layers' weights as bytes; faster, other answers"
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$", description="auto, cpu or cuda[:n]"
    )
    topic_prefix: str = Field(
        "headrace",
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="first part of the topics' names",
    )
    answer_prefix: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="worker: first part of the names of what it writes (responses, dead letters, "
        "Redis keys) where that is to be kept apart; default: the topic prefix",
    )
    group: str = Field("headrace", min_length=1, description="consumer group of the workers")

    max_batch_size: int = Field(32, ge=1, le=4096, description="rows that run at once")
    batch_window_ms: float = Field(
        5.0,
        ge=0,
        le=10_000,
        description="how long an idle engine waits so that its first step is a batch",
    )
    max_batch_tokens: int = Field(512, ge=16, description="tokens of one step, prefill included")
    kv_pool_mb: int = Field(1024, ge=1, description="memory for KV state on the device")
    kv_to_redis: Literal["on", "off"] = Field("on", description="whether KV state goes to Redis")
    threads: int = Field(0, ge=0, description="CPU threads of the engine; 0 = all cores")

    http_host: str = Field("127.0.0.1", description="address that the gateway listens on")
    http_port: int = Field(
        8080,
        ge=0,
        le=65535,
        description="port that the gateway listens on; 0 = any free port, logged",
    )
    grpc_port: int | None = Field(
        None, ge=0, le=65535, description="port for gRPC beside HTTP; 0 = any free port, logged"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="worker: 0 = any free port, logged")
    api_keys_file: Path | None = Field(
        None,
        description='JSON file {"key": "tenant"}, read again when it changes; see docs/security.md',
    )
    rate_limit_requests: int | None = Field(
        None, ge=1, description="requests that a tenant may send in a minute; default: no limit"
    )
    rate_limit_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens, of prompts and answers, that a tenant may use in a minute; "
        "default: no limit",
    )
    recent_log_mb: int = Field(
        64,
        ge=1,
        le=65_536,
        description="gateway: memory for the newest responses, from which clients resume",
    )
    query_api_key: Literal["on", "off"] = Field(
        "off", description="gateway: whether a WebSocket may carry its key as ?api_key="
    )
    allowed_origins: str | None = Field(
        None,
        description="gateway: pages of other sites that may use it, https://host[:port][,…]",
    )
    tls_cert_file: Path | None = Field(
        None, description="gateway: certificate chain in PEM; with it HTTPS is served"
    )
    tls_key_file: Path | None = Field(None, description="gateway: the certificate's key in PEM")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    log_format: Literal["text", "json"] = Field("text", description="form of the log lines")
    traces: Literal["off", "otlp"] = Field(
        "off",
        description="worker: spans to the collector that the OTEL_* variables name; "
        "needs headrace[otel]",
    )

    drain_timeout_s: float = Field(20.0, gt=0, le=3600, description="how long a stop may take")
    session_timeout_s: float = Field(
        6.0,
        ge=1,
        le=300,
        description="after this the group gives a dead worker's partitions away; "
        "6 s is the least that brokers allow by default",
    )
    group_instance_id: str | None = Field(
        None,
        min_length=1,
        max_length=249,
        description="static membership: a worker that dies and is back under this name within the "
        "session timeout finds its partitions kept; another for each worker",
    )
    journal_ttl_s: int = Field(86_400, ge=60, description="how long a request id is remembered")
    session_ttl_s: int = Field(604_800, ge=60, description="how long an idle conversation is kept")
    max_request_bytes: int = Field(
        1_000_000, ge=1_000, le=8_000_000, description="largest request that is taken"
    )

    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how Kafka is connected to"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="how we log in to Kafka"
    )
    kafka_username: str | None = Field(
        None, description=f"name at Kafka; the password is {PREFIX}KAFKA_PASSWORD"
    )
    kafka_password: SecretStr | None = Field(
        None, description="has no flag: others can read a command line"
    )
    kafka_ca_file: Path | None = Field(
        None, description="certificates that Kafka's is checked against"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_no_value(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("is empty: give it a value or unset it")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("kafka")
    @classmethod
    def _servers(cls, value: str) -> str:
        for server in value.split(","):
            found = _SERVER.fullmatch(server.strip())
            if not found or not 0 < int(found[2]) < 65536:
                raise ValueError(f"{server!r} is not host:port")
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: str | None) -> str | None:
        for origin in [] if value is None else value.split(","):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not http[s]://host[:port], without * or path")
        return value

    @field_validator("redis")
    @classmethod
    def _redis_url(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        try:
            _ = urlsplit(value).port
        except ValueError:
            raise ValueError("is no URL: its host or port is broken") from None
        return value

    @model_validator(mode="after")
    def _credentials_where_needed(self) -> "Settings":
        needed = "SASL" in self.kafka_security_protocol
        if needed and (self.kafka_username is None or self.kafka_password is None):
            names = f"{PREFIX}KAFKA_USERNAME and {PREFIX}KAFKA_PASSWORD"
            raise ValueError(f"{names} are needed with {self.kafka_security_protocol}")
        return self

    @model_validator(mode="after")
    def _whole_tls_pair(self) -> "Settings":
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            names = f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE"
            raise ValueError(f"{names} are needed together")
        return self

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, _without_password(value) if name == "redis" else value

    @property
    def short_model(self) -> str:
        """The model's alias, or the last part of its folder or hub id; events name it so."""
        return self.model.rstrip("/").rpartition("/")[2]

    @property
    def origins(self) -> frozenset[str]:
        """The allowed origins, as browsers write them: in lower case, without a default port."""
        named = (self.allowed_origins or "").lower().split(",")
        return frozenset(_DEFAULT_PORT.sub(r"\1\2", one) for one in named if one)

    @property
    def max_record_bytes(self) -> int:
        """The largest request record: body, headers and framing."""
        return self.max_request_bytes + RECORD_OVERHEAD_BYTES

    @property
    def max_response_bytes(self) -> int:
        """The largest record that a worker writes."""
        return 2 * self.max_record_bytes

    @property
    def max_open_requests(self) -> int:
        """What a worker takes from Kafka: a batch that runs and three behind it; the rest waits."""
        return max(64, 4 * self.max_batch_size)

    @property
    def topics(self) -> Topics:
        return Topics(self.topic_prefix, self.answer_prefix)

    @property
    def keys(self) -> Keys:
        return Keys(self.answer_prefix or self.topic_prefix)

    @property
    def answers_apart(self) -> bool:
        """Whether a worker answers beside the pipeline that it reads, to be compared with it."""
        return self.answer_prefix not in (None, self.topic_prefix)

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for Kafka, or None where the protocol has no TLS.

        Raises: SettingsError where the CA file cannot be used.
        """
        if "SSL" not in self.kafka_security_protocol:
            return None
        try:
            return ssl.create_default_context(cafile=self.kafka_ca_file)
        except OSError as problem:
            raise SettingsError(f"{PREFIX}KAFKA_CA_FILE: {problem}") from problem

    def kafka_options(self) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client of ours starts from."""
        password = self.kafka_password.get_secret_value() if self.kafka_password else None
        return {
            "bootstrap_servers": [server.strip() for server in self.kafka.split(",")],
            "security_protocol": self.kafka_security_protocol,
            "sasl_mechanism": self.kafka_sasl_mechanism or "PLAIN",
            "sasl_plain_username": self.kafka_username,
            "sasl_plain_password": password,
            "ssl_context": self.ssl_context(),
        }


def load_settings(**flags: Any) -> Settings:
    """Settings from the environment; `flags` that are not None win.

    Raises: SettingsError naming each unknown variable or bad value.
    """
    check_names(os.environ)
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as problem:
        lines = [": ".join(_named(error)) for error in problem.errors()]
        raise SettingsError("; ".join(lines)) from problem


def check_names(environment: Mapping[str, str]) -> None:
    """Raise SettingsError for `HEADRACE_*` names that nobody would read: a typo must not pass."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(
        name
        for name in environment
        if name.upper().startswith(PREFIX)
        and name.upper() not in known
        and not name.upper().startswith(_FOREIGN)
    )
    if unknown:
        raise SettingsError(f"unknown setting {', '.join(unknown)}: see `headrace --help`")


def child_environment(**settings: Any) -> dict[str, str]:
    """This process's environment with `settings` set as `HEADRACE_*`, for a process we start.

    None leaves a variable as it is; a secret is handed on in the clear.
    """
    return dict(os.environ) | {
        PREFIX + name.upper(): _plain(value)
        for name, value in settings.items()
        if value is not None
    }


def _plain(value: Any) -> str:
    return str(value.get_secret_value() if isinstance(value, SecretStr) else value)


def _named(error: ErrorDetails) -> list[str]:
    """The variable, if the error is about one, and what is wrong with it."""
    return [PREFIX + str(name).upper() for name in error["loc"][:1]] + [explain(error)]


def _without_password(url: str) -> str:
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"//.*@", "//***@", url))
