"""Settings: environment, flags, and what is said of a bad value."""

import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings, child_environment, load_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in child_environment():
        if name.upper().startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def refused(**flags: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**flags)
    return str(caught.value)


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo must not pass, in either case."""
    monkeypatch.setenv("HEADRACE_KAFAK", "x")
    monkeypatch.setenv("headrace_modle", "x")
    assert refused() == ("unknown setting HEADRACE_KAFAK, headrace_modle: see `headrace --help`")


@pytest.mark.parametrize(
    "name", ["HEADRACE_TEST_X", "HEADRACE_KIT_X", "HEADRACE_BIN", "HEADRACE_BINARY"]
)
def test_foreign_names_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """They belong to test kits and launchers."""
    monkeypatch.setenv(name, "x")
    assert load_settings() == Settings()


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a value that is bad; None is no flag."""
    monkeypatch.setenv("HEADRACE_HTTP_PORT", "bad")
    monkeypatch.setenv("HEADRACE_GROUP", "workers")
    found = load_settings(http_port=1, group=None)
    assert (found.http_port, found.group) == (1, "workers")


BAD = [
    ("kafka", "localhost", "'localhost' is not host:port"),
    ("kafka", "a:1,", "'' is not host:port"),
    ("kafka", "a:70000", "'a:70000' is not host:port"),
    ("kafka", "a:²", "'a:²' is not host:port"),
    ("kafka", "PLAINTEXT://a:1", "'PLAINTEXT://a:1' is not host:port"),
    ("kafka", "", "is empty: give it a value or unset it"),
    ("api_keys_file", "", "is empty: give it a value or unset it"),
    ("redis", "http://h", "must begin with redis://, rediss:// or unix://"),
    ("redis", "redis://[", "is no URL: its host or port is broken"),
    ("dtype", "int8", "must be 'auto', 'float32', 'bfloat16' or 'float16'"),
    ("device", "tpu", "must match ^(auto|cpu|cuda(:[0-9]+)?)$"),
    ("device", "cuda:٣", "must match ^(auto|cpu|cuda(:[0-9]+)?)$"),
    ("http_port", "80a", "must be an integer"),
    ("http_port", "65536", "must be at most 65535"),
    ("max_batch_size", "2.5", "must be an integer"),
    ("max_batch_size", "0", "must be at least 1"),
    ("batch_window_ms", "nan", "must be a finite number"),
    ("drain_timeout_s", "0", "must be greater than 0"),
    ("drain_timeout_s", "soon", "must be a number"),
    ("session_timeout_s", "301", "must be at most 300"),
    ("log_format", "xml", "must be 'text' or 'json'"),
    ("kv_to_redis", "yes", "must be 'on' or 'off'"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_bad_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """One short line; a flag of the same name is refused alike."""
    expected = f"HEADRACE_{name.upper()}: {message}"
    assert expected == refused(**{name: value})
    monkeypatch.setenv(f"HEADRACE_{name.upper()}", value)
    assert expected == refused()


def test_every_bad_value_is_named() -> None:
    """Not one per start."""
    assert refused(http_port=-1, nonsense=1) == (
        "HEADRACE_HTTP_PORT: must be at least 0, not -1; HEADRACE_NONSENSE: is unknown"
    )


@pytest.mark.parametrize("value", ["h:1", "h:1, i:2", "[::1]:9092", "a-b.example:65535"])
def test_server_lists(value: str) -> None:
    """host:port[,…], IPv6 in brackets."""
    options = load_settings(kafka=value).kafka_options()
    assert [server.strip() for server in value.split(",")] == options["bootstrap_servers"]


def test_origins_are_compared_as_browsers_write_them() -> None:
    """In lower case, without the port that the scheme has anyway; what none sends is refused."""
    allowed = "https://App.example:443,http://b.example:80,http://c.example:443,http://[::1]:80"
    assert load_settings(allowed_origins=allowed).origins == {
        *("https://app.example", "http://b.example", "http://c.example:443", "http://[::1]"),
    }
    for useless in ("*", "https://*.example", "https://a.example/", "https://me@a.example"):
        assert "HEADRACE_ALLOWED_ORIGINS" in refused(allowed_origins=useless)


def test_log_level_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """`INFO` is what most programs take."""
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "WARNING")
    assert load_settings().log_level == "warning"


def test_secrets_are_in_no_text() -> None:
    """Neither the Kafka password nor one in the Redis URL, in any spelling."""
    redis = "redis://user:s3cr/et@h:1/0?password=s3cret&db=1"
    found = load_settings(
        redis="redis://user:s3cret@h:1/0?password=s3cret", kafka_password="s3cret"
    )
    assert "s3cret" not in repr(found) + str(found)
    assert "redis://***@h:1/0?password=***" in repr(found)
    assert "s3cr" not in refused(redis=redis)


def test_secrets_are_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the chained validation error quoted every value."""
    monkeypatch.setenv("HEADRACE_REDIS", "http://:s3cret@h")
    monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "s3cret")
    with pytest.raises(SettingsError) as caught:
        load_settings(http_port=-1)
    assert "s3cret" not in str(caught.value) + str(caught.value.__cause__)


def test_sasl_needs_credentials() -> None:
    """Said at start, by name, not by a client that waits."""
    message = "HEADRACE_KAFKA_USERNAME and HEADRACE_KAFKA_PASSWORD are needed with SASL_PLAINTEXT"
    assert message == refused(kafka_security_protocol="SASL_PLAINTEXT", kafka_username="u")
    options = load_settings(
        kafka_security_protocol="SASL_PLAINTEXT", kafka_username="u", kafka_password="p"
    ).kafka_options()
    assert (options["sasl_mechanism"], options["sasl_plain_password"]) == ("PLAIN", "p")


def test_tls(tmp_path: Path) -> None:
    """A context where the protocol has TLS; a CA file that cannot be used is named."""
    assert load_settings().ssl_context() is None
    context = load_settings(kafka_security_protocol="SSL").ssl_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for file in (broken, tmp_path / "absent.pem"):
        with pytest.raises(SettingsError, match=r"^HEADRACE_KAFKA_CA_FILE: "):
            load_settings(kafka_security_protocol="SSL", kafka_ca_file=file).ssl_context()


def test_settings_are_frozen_and_can_be_pickled() -> None:
    """One set per process, handed to another as it is."""
    found = load_settings(model="m")
    with pytest.raises(ValueError, match="frozen"):
        found.model = "n"  # type: ignore[misc]
    assert found == pickle.loads(pickle.dumps(found))  # noqa: S301


def test_topics_and_keys_share_the_prefix() -> None:
    """Two pipelines on one Kafka and one Redis do not meet."""
    found = load_settings(topic_prefix="a.b")
    assert (found.topics.requests, found.keys.fence(3)) == ("a.b.requests", "a.b:fence:3")


def test_a_child_gets_the_settings_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: None became the text `None`, and a secret its asterisks."""
    monkeypatch.setenv("HEADRACE_GROUP", "g")
    found = child_environment(http_port=5, kafka_password=SecretStr("p"), group=None)
    names = ("HEADRACE_HTTP_PORT", "HEADRACE_KAFKA_PASSWORD", "HEADRACE_GROUP")
    assert [found[name] for name in names] == ["5", "p", "g"]
