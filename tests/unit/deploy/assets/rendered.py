"""The Kubernetes manifests as kubectl renders them."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from tests.tools import run
from tests.unit.deploy.assets import shipped

KUBERNETES = shipped.ASSETS / "kubernetes"
FOLDERS = ("base", *sorted(f"overlays/{path.name}" for path in KUBERNETES.glob("overlays/*")))


@cache
def resources(folder: str) -> tuple[dict[str, Any], ...]:
    """All resources of the base or of an overlay."""
    return tuple(yaml.safe_load_all(run("kubectl", "kustomize", KUBERNETES / folder)))


def one(folder: str, kind: str, name: str) -> dict[str, Any]:
    """The resource of this kind and name."""
    (found,) = [
        resource
        for resource in resources(folder)
        if (resource["kind"], resource["metadata"]["name"]) == (kind, name)
    ]
    return found


def pod_specs(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods' specs, with the names of what makes them."""
    for resource in resources(folder):
        if resource["kind"] in ("Deployment", "Job"):
            yield resource["metadata"]["name"], resource["spec"]["template"]["spec"]


def environment(folder: str, container: dict[str, Any]) -> dict[str, str]:
    """What a container's process finds set, without the secrets."""
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            values |= one(folder, "ConfigMap", source["configMapRef"]["name"])["data"]
    return values | {item["name"]: item["value"] for item in container.get("env", ())}
