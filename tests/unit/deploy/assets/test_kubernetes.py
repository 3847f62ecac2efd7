"""The Kubernetes manifests: valid, consistent with each other and with the program."""

from typing import Any

import kubernetes_validate
import pytest
from cloudcoil.models.keda.v1alpha1 import ScaledObject

from headrace.consumers.auth import check_bind
from headrace.consumers.server import SHUTDOWN_TIMEOUT_S
from headrace.deploy import cli
from headrace.deploy.topics import DEFAULT_PARTITIONS
from headrace.schemas.settings import Settings, check_names, load_settings
from headrace.streams.worker import EXIT_TIMEOUT_S
from tests.unit.deploy.assets import rendered, shipped

FOLDER = pytest.mark.parametrize("folder", rendered.FOLDERS)
SCALED = pytest.mark.parametrize("folder", ["overlays/keda", "overlays/hpa", "overlays/gpu-keda"])
SECRETS = shipped.documents(rendered.KUBERNETES / "base" / "secrets.example.yaml")
LONGEST_ANSWER_S = 600
"""That the scaling and the alert rules are made for: docs/operations.md."""


@FOLDER
def test_the_resources_are_valid(folder: str) -> None:
    """Against the schemas of Kubernetes, unknown fields refused."""
    for resource in rendered.resources(folder):
        if resource["kind"] != "ScaledObject":
            version = kubernetes_validate.latest_version()
            kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret["metadata"]["name"])
def test_the_example_secrets_are_valid(secret: dict[str, Any]) -> None:
    """They are the reader's to fill in."""
    kubernetes_validate.validate(secret, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", ["overlays/keda", "overlays/gpu-keda"])
def test_the_scaled_object_is_what_keda_takes(folder: str) -> None:
    """Against models made from KEDA's own definition; they drop a field that they do not know."""
    resource = rendered.one(folder, "ScaledObject", "headrace-worker")
    read = ScaledObject.model_validate(resource)
    assert resource == read.model_dump(by_alias=True, exclude_unset=True, mode="json")


@FOLDER
def test_every_resource_is_in_the_namespace(folder: str) -> None:
    """None lands in `default`."""
    for resource in rendered.resources(folder):
        if resource["kind"] != "Namespace":
            assert resource["metadata"]["namespace"] == "headrace"


@FOLDER
def test_every_setting_exists_and_has_a_good_value(folder: str) -> None:
    """As the process would see them: with the example's secrets."""
    secrets = SECRETS[0]["stringData"]
    for _, spec in rendered.pod_specs(folder):
        for container in spec["containers"]:
            environment = rendered.environment(folder, container) | secrets
            check_names(environment)
            names = {name.removeprefix("HEADRACE_").lower(): name for name in environment}
            check_bind(load_settings(**{name: environment[full] for name, full in names.items()}))


@FOLDER
def test_every_command_exists(folder: str) -> None:
    """With its flags: the help is shown instead of running it."""
    for _, spec in rendered.pod_specs(folder):
        for container in spec["containers"]:
            assert cli.run([*container["args"], "--help"]) == 0


@FOLDER
def test_pods_get_no_addresses_of_services_as_settings(folder: str) -> None:
    """HEADRACE_GATEWAY_PORT, set by Kubernetes, would be an unknown setting: exit code 2."""
    for name, spec in rendered.pod_specs(folder):
        assert spec["enableServiceLinks"] is False, name


@FOLDER
def test_pods_are_locked_down(folder: str) -> None:
    """No root, no new privileges, a root file system that is only read."""
    for name, spec in rendered.pod_specs(folder):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsUser"] == 10001, name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]


@FOLDER
def test_mounted_volumes_are_defined_and_the_other_way_round(folder: str) -> None:
    """By name."""
    for _, spec in rendered.pod_specs(folder):
        defined = {volume["name"] for volume in spec["volumes"]}
        mounted = {m["name"] for container in spec["containers"] for m in container["volumeMounts"]}
        assert defined == mounted


@FOLDER
def test_a_pod_may_take_longer_to_stop_than_its_process_does(folder: str) -> None:
    """Else a drain would end in a kill."""
    specs = dict(rendered.pod_specs(folder))
    worker = specs["headrace-worker"]
    (container,) = worker["containers"]
    drain_s = float(rendered.environment(folder, container)["HEADRACE_DRAIN_TIMEOUT_S"])
    assert worker["terminationGracePeriodSeconds"] > drain_s + EXIT_TIMEOUT_S
    gateway = specs["headrace-gateway"]
    (wait_s,) = gateway["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1:]
    assert gateway["terminationGracePeriodSeconds"] > float(wait_s) + 2 * SHUTDOWN_TIMEOUT_S


@FOLDER
def test_probes_ports_and_scrapes_are_those_of_the_settings(folder: str) -> None:
    """One number in three places."""
    for name, variable in (
        ("headrace-worker", "HEADRACE_METRICS_PORT"),
        ("headrace-gateway", "HEADRACE_HTTP_PORT"),
    ):
        template = rendered.one(folder, "Deployment", name)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        (port,) = container["ports"]
        notes = template["metadata"]["annotations"]
        assert str(port["containerPort"]) == rendered.environment(folder, container)[variable]
        assert str(port["containerPort"]) == notes["prometheus.io/port"]
        for probe, path in (
            ("startup", "/healthz"),
            ("liveness", "/healthz"),
            ("readiness", "/readyz"),
        ):
            asked = container[f"{probe}Probe"]["httpGet"]
            assert (asked["path"], asked["port"]) == (path, port["name"])


@FOLDER
def test_selectors_select_the_pods_that_they_are_for(folder: str) -> None:
    """A label that differs in one place would leave a Service or a budget without pods."""
    labels = {
        name: rendered.one(folder, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        for name in ("headrace-worker", "headrace-gateway")
    }
    for resource in rendered.resources(folder):
        spec, name = resource.get("spec", {}), resource["metadata"]["name"]
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector)
        if wanted:
            assert wanted.items() <= labels[name].items(), (resource["kind"], name)


@SCALED
def test_a_scaler_alone_sets_the_number_of_workers(folder: str) -> None:
    """An apply would set it back to the file's."""
    assert "replicas" not in rendered.one(folder, "Deployment", "headrace-worker")["spec"]


@SCALED
def test_scaling_in_waits_for_the_longest_answer_and_goes_one_by_one(folder: str) -> None:
    """Each step is a rebalance, and a sawtooth load must not make a storm of them."""
    resources = {one["kind"]: one["spec"] for one in rendered.resources(folder) if "spec" in one}
    if "ScaledObject" in resources:
        spec = resources["ScaledObject"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        most = spec["maxReplicaCount"]
        assert spec["cooldownPeriod"] >= LONGEST_ANSWER_S
    else:
        spec = resources["HorizontalPodAutoscaler"]
        behavior, most = spec["behavior"], spec["maxReplicas"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] > LONGEST_ANSWER_S
    assert [policy["value"] for policy in behavior["scaleDown"]["policies"]] == [1]
    assert most == DEFAULT_PARTITIONS == _num_partitions(folder)


def test_the_kafka_trigger_asks_for_what_the_workers_read() -> None:
    """Topic, group and address; and nothing that mistakes a long answer for persistent lag."""
    settings = rendered.one("overlays/keda", "ConfigMap", "headrace-config")["data"]
    spec = rendered.one("overlays/keda", "ScaledObject", "headrace-worker")["spec"]
    (kafka,) = [one["metadata"] for one in spec["triggers"] if one["type"] == "kafka"]
    assert kafka["bootstrapServers"] == settings["HEADRACE_KAFKA"]
    assert kafka["consumerGroup"] == settings["HEADRACE_GROUP"]
    assert kafka["topic"] == f"{settings['HEADRACE_TOPIC_PREFIX']}.requests"
    assert int(kafka["lagThreshold"]) == Settings.model_fields["max_batch_size"].default
    assert kafka["offsetResetPolicy"] == "earliest"
    assert "excludePersistentLag" not in kafka
    assert "scaleToZeroOnInvalidOffset" not in kafka


def test_gpu_workers_ask_for_a_gpu_and_wait_for_none_that_is_not_there() -> None:
    """A roll-out that needs a spare GPU would hang."""
    deployment = rendered.one("overlays/gpu", "Deployment", "headrace-worker")["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    resources = container["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert container["image"].endswith("-cuda")


def _num_partitions(folder: str) -> int:
    (container,) = rendered.one(folder, "Job", "headrace-topics")["spec"]["template"]["spec"][
        "containers"
    ]
    return int(container["args"][container["args"].index("--partitions") + 1])
