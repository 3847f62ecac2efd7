"""Flags made from settings."""

from pathlib import Path

import pytest
import typer

from headrace.deploy.commands import options
from headrace.deploy.commands.options import flag_name, with_settings
from headrace.deploy.local_services import changed
from headrace.deploy.logging import mask_secrets
from headrace.deploy.programs import gateway_program, worker_program
from headrace.schemas.settings import Settings, load_settings


def settings_of(*args: str) -> Settings:
    """What a command with all flags gets."""
    found: list[Settings] = []
    app = typer.Typer(add_completion=False)

    @app.command()
    @with_settings(*options.UP_FLAGS, "metrics_port")
    def command(settings: Settings) -> int:
        found.append(settings)
        return 0

    typer.main.get_command(app).main(args=list(args), standalone_mode=False)
    return found[0]


def test_every_setting_but_the_password_has_a_flag() -> None:
    """A command line can be read by other users; everything else is as easy either way."""
    without = set(Settings.model_fields) - set(options.UP_FLAGS) - set(options.OF_ONE_WORKER)
    assert without == {"kafka_password"}


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the environment over the default."""
    monkeypatch.setenv("HEADRACE_MAX_BATCH_SIZE", "8")
    monkeypatch.setenv("HEADRACE_GROUP", "env")
    settings = settings_of("--max-batch-size", "16")
    assert (settings.max_batch_size, settings.group) == (16, "env")


def test_flags_have_the_types_of_their_settings() -> None:
    """Text from the command line becomes what the setting is."""
    settings = settings_of(
        *("--batch-window-ms", "2.5", "--api-keys-file", "keys.json", "--kv-to-redis", "off"),
        *("--metrics-port", "9100"),
    )
    assert settings.batch_window_ms == 2.5
    assert settings.api_keys_file == Path("keys.json")
    assert settings.kv_to_redis == "off"
    assert settings.metrics_port == 9100


def test_a_flag_that_is_not_given_counts_as_not_given() -> None:
    """`up` starts its own Kafka only where nobody named one."""
    assert "kafka" not in settings_of().model_fields_set
    assert "kafka" in settings_of("--kafka", "127.0.0.1:9092").model_fields_set


def test_flag_names() -> None:
    """The setting's name, with hyphens."""
    assert flag_name("batch_window_ms") == "--batch-window-ms"


def test_children_of_up_get_what_was_given_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in another folder; a password is not put on their command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "hunter2")
    given = load_settings(kafka_ca_file="ca.pem", api_keys_file="keys.json", group="g", threads=3)
    settings = changed(given, http_port=8080)
    worker = worker_program(settings, tmp_path, 1, 2)
    gateway = gateway_program(settings, tmp_path)
    assert f"--kafka-ca-file={tmp_path / 'ca.pem'}" in worker.args
    assert f"--api-keys-file={tmp_path / 'keys.json'}" in gateway.args
    assert {"--group=g", "--threads=3", f"--metrics-port={worker.ready_port}"} <= set(worker.args)
    assert gateway.ready_port == 8080
    assert "hunter2" not in " ".join([*worker.args, *gateway.args])


def test_workers_of_one_machine_share_its_cores(tmp_path: Path) -> None:
    """Unless somebody says otherwise: else each would take them all."""
    settings = load_settings()
    assert "--threads=1" in worker_program(settings, tmp_path, 1, 10_000).args
    alone = worker_program(settings, tmp_path, 1, 1)
    assert not any(word.startswith("--threads") for word in alone.args)


def test_logs_hold_no_credentials() -> None:
    """Neither as a field nor inside a URL."""
    event = {
        "event": "cannot reach redis://user:hunter2@store:6379/0",
        "url": "redis://:hunter2@store:6379/0",
        "password": "hunter2",
        "Authorization": "Bearer hunter2",
        "tokens": 7,
    }
    masked = mask_secrets(None, "info", event)
    assert "hunter2" not in str(masked)
    assert masked["tokens"] == 7
    assert "store:6379" in masked["url"]
