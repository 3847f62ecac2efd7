"""The deployment files, read for the tests beside this file."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[4]
ASSETS = ROOT / "deploy" / "assets"
PROMETHEUS = ASSETS / "prometheus"
RULES = PROMETHEUS / "headrace.rules.yml"
DASHBOARD = ASSETS / "grafana" / "headrace.json"
OPERATIONS = ROOT / "docs" / "operations.md"

_STRING = re.compile(r'"[^"]*"')
_METRIC = re.compile(r"\bheadrace_[a-z0-9_]+")


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """All rules of the rule file, alerts and recorded ones."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


def alerts() -> list[dict[str, Any]]:
    """The rules that are alerts."""
    return [rule for rule in rules() if "alert" in rule]


@cache
def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard, with its panel's title."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def metrics_in(expressions: Iterable[str]) -> set[str]:
    """The names of our metrics in PromQL; what stands in label values does not count."""
    return {name for text in expressions for name in _METRIC.findall(_STRING.sub('""', text))}


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of one YAML file."""
    return [one for one in yaml.safe_load_all(path.read_text("utf-8")) if one is not None]
