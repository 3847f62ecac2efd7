"""The compose file and the Dockerfile: valid, and consistent with what they start."""

import re
from pathlib import Path
from typing import Any

import compose_spec
import pytest

from headrace.consumers.api_keys import ApiKeys, load_key_table
from headrace.consumers.auth import check_bind
from headrace.deploy import cli
from headrace.models.store import list_models
from headrace.schemas.settings import check_names, load_settings
from headrace.streams.worker import EXIT_TIMEOUT_S
from tests.tools import run
from tests.unit.deploy.assets import shipped

COMPOSE = shipped.ASSETS / "compose" / "compose.yaml"
DOCKERFILE = shipped.ASSETS / "docker" / "Dockerfile"
_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")
(DOCUMENT,) = shipped.documents(COMPOSE)
SERVICES: dict[str, Any] = DOCUMENT["services"]
OURS = pytest.mark.parametrize("name", ["topics", "worker", "gateway"])


def test_the_compose_file_is_valid() -> None:
    """By the compose specification, variables at their defaults, unknown keys refused."""
    text = _DEFAULT.sub(r"\1", COMPOSE.read_text("utf-8"))
    compose = compose_spec.PyOptions(apply_merge=True).from_yaml(text)
    compose.validate()
    assert set(compose.service_names()) == set(SERVICES)


def test_the_dockerfile_passes_its_linter() -> None:
    """hadolint, from its most to its least serious rules."""
    assert run("hadolint", DOCKERFILE) == ""


@OURS
def test_every_setting_exists_and_has_a_good_value(name: str) -> None:
    """As the process would see them."""
    environment = SERVICES[name]["environment"]
    check_names(environment)
    values = {key.removeprefix("HEADRACE_").lower(): value for key, value in environment.items()}
    check_bind(load_settings(**values))


@OURS
def test_every_command_exists(name: str) -> None:
    """With its flags: the help is shown instead of running it."""
    assert cli.run([*SERVICES[name]["command"], "--help"]) == 0


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_from_here_exists(name: str) -> None:
    """Docker would make an empty folder in its place."""
    sources = [str(volume).split(":")[0] for volume in SERVICES[name].get("volumes", ())]
    for source in sources:
        if source.startswith("."):
            assert (COMPOSE.parent / source).exists(), source
        else:
            assert source in DOCUMENT["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_who_waits_for_health_waits_for_somebody_who_tells_it(name: str) -> None:
    """A service without a health check never gets healthy."""
    waits = SERVICES[name].get("depends_on", {})
    for other in waits:
        condition = waits[other]["condition"] if isinstance(waits, dict) else "service_started"
        assert other in SERVICES
        if condition == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        if condition == "service_completed_successfully":
            assert SERVICES[other]["restart"] == "no"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    """Kafka and Redis ask for no password, and the API key stands in the repository."""
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


def test_prometheus_scrapes_the_ports_that_the_services_listen_on() -> None:
    """Worker and gateway, by the names and numbers of the compose file."""
    (config,) = shipped.documents(shipped.PROMETHEUS / "prometheus.yml")
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    (by_name,) = jobs["headrace-worker"]["dns_sd_configs"]
    assert by_name["names"] == ["worker"]
    assert str(by_name["port"]) == SERVICES["worker"]["environment"]["HEADRACE_METRICS_PORT"]
    port = SERVICES["gateway"]["environment"]["HEADRACE_HTTP_PORT"]
    assert jobs["headrace-gateway"]["static_configs"] == [{"targets": [f"gateway:{port}"]}]


def test_health_checks_ask_the_ports_that_the_services_listen_on() -> None:
    """The numbers stand in a line of Python."""
    for name, variable in (("worker", "HEADRACE_METRICS_PORT"), ("gateway", "HEADRACE_HTTP_PORT")):
        port = SERVICES[name]["environment"][variable]
        assert f"http://127.0.0.1:{port}/healthz" in SERVICES[name]["healthcheck"]["test"][-1]


def test_the_data_source_is_the_prometheus_of_the_compose_file() -> None:
    """By its service name and port."""
    folder = shipped.ASSETS / "grafana" / "provisioning" / "datasources"
    (found,) = shipped.documents(folder / "prometheus.yml")
    assert found["datasources"][0]["url"] == "http://prometheus:9090"


def test_a_worker_may_take_longer_to_stop_than_a_drain_does() -> None:
    """Else a drain would end in a kill."""
    grace_s = compose_spec.parse_duration(SERVICES["worker"]["stop_grace_period"])
    settings = load_settings(**{"kafka": SERVICES["worker"]["environment"]["HEADRACE_KAFKA"]})
    assert grace_s > settings.drain_timeout_s + EXIT_TIMEOUT_S


def test_the_example_keys_are_a_keys_file() -> None:
    """As the gateway reads it."""
    keys = ApiKeys(load_key_table(COMPOSE.parent / "api-keys.json"))
    assert keys.tenant_of("try-headrace") == "default"


def test_the_image_holds_all_folders_of_the_package() -> None:
    """Each is copied into the build, and none is left out of its context."""
    text = DOCKERFILE.read_text("utf-8")
    sent = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    folders = [path.name for path in (shipped.ROOT / "src" / "headrace").iterdir() if path.is_dir()]
    for folder in ("src", *(name for name in folders if name != "__pycache__")):
        assert f"COPY {folder}/ {folder}/" in text
        assert f"!{folder}" in sent


def test_what_the_image_copies_exists() -> None:
    """A renamed file would fail an hour into somebody's build."""
    copied = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    names = [Path(word) for line in copied for word in line.split()[:-1]]
    assert names
    assert [name for name in names if not (shipped.ROOT / name).exists()] == []


def test_the_worker_serves_the_model_that_the_image_holds() -> None:
    """`headrace models pull` puts it there when the image is built."""
    text = DOCKERFILE.read_text("utf-8")
    (cache,) = re.findall(r"XDG_CACHE_HOME=(/opt)\b", text)
    (model,) = list_models(cache_dir=Path(cache) / "headrace")
    assert f"headrace models pull {model.alias}" in text
    assert str(model.folder) == SERVICES["worker"]["environment"]["HEADRACE_MODEL"]
    assert model.alias == SERVICES["gateway"]["environment"]["HEADRACE_MODEL"]


def test_the_image_runs_as_the_user_that_the_pods_name() -> None:
    """By number, or Kubernetes cannot tell that it is not root."""
    assert "USER 10001:10001" in DOCKERFILE.read_text("utf-8")
