"""The alert rules: valid, each tested both ways, each explained, about metrics that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.schemas.errors import ErrorCode
from tests.tools import run
from tests.unit.deploy.assets import exported, shipped

TESTS = sorted((shipped.PROMETHEUS / "tests").glob("*.yml"))
CASES = [
    case
    for path in TESTS
    for test in yaml.safe_load(path.read_text("utf-8"))["tests"]
    for case in test["alert_rule_test"]
]
ALERT = pytest.mark.parametrize("alert", shipped.alerts(), ids=lambda alert: alert["alert"])
OWN_CODES = {"expired", "overloaded", "numerical_error", "out_of_memory", "internal_error"}


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    """As its own tool sees them."""
    assert "SUCCESS" in run("promtool", "check", "config", shipped.PROMETHEUS / "prometheus.yml")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_alerts_fire_when_they_should(path: Path) -> None:
    """Prometheus' own tests of rules."""
    assert "SUCCESS" in run("promtool", "test", "rules", path)


@ALERT
def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(
    alert: dict[str, Any],
) -> None:
    """So that none is a rule that can never fire, or always does."""
    fires = {bool(case.get("exp_alerts")) for case in CASES if case["alertname"] == alert["alert"]}
    assert {True, False} == fires


def test_the_tests_are_about_alerts_that_exist() -> None:
    """A test of a renamed alert that expects nothing would pass for ever."""
    assert {case["alertname"] for case in CASES} == {one["alert"] for one in shipped.alerts()}


@ALERT
def test_each_alert_says_what_a_person_on_call_needs(alert: dict[str, Any]) -> None:
    """How bad, what, the figure, and where to read on."""
    notes = alert["annotations"]
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert notes["summary"]
    assert "$value" in notes["description"]
    assert notes["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"


@ALERT
def test_each_alert_is_explained_in_the_operations_guide(alert: dict[str, Any]) -> None:
    """Under a heading of its name, which is what the runbook link points to."""
    headings = re.findall(r"^#+ (\w+)$", shipped.OPERATIONS.read_text("utf-8"), re.MULTILINE)
    assert alert["alert"] in headings


def test_the_rules_use_only_metrics_that_are_exported() -> None:
    """A renamed metric would silence an alert."""
    used = shipped.metrics_in(rule["expr"] for rule in shipped.rules())
    there = exported.sample_names(exported.worker_families() + exported.gateway_families())
    assert set() == used - there


def test_recorded_series_are_used_under_their_own_names() -> None:
    """Each name with a colon is one that a rule records."""
    recorded = {rule["record"] for rule in shipped.rules() if "record" in rule}
    expressions = [rule["expr"] for rule in shipped.rules()]
    expressions += [query for _, query in shipped.queries()]
    used = {name for text in expressions for name in re.findall(r"\bheadrace:[\w:]+", text)}
    assert recorded == used


def test_the_error_rate_counts_the_failures_that_are_ours() -> None:
    """All codes that the client has not caused; also one that does not exist yet."""
    (expression,) = [
        rule["expr"]
        for rule in shipped.rules()
        if rule.get("record") == "headrace:own_failures:rate10m"
    ]
    (left_out,) = re.findall(r'code!~"([^"]*)"', expression)
    counted = {code.value for code in ErrorCode if not re.fullmatch(left_out, code.value)}
    assert counted == OWN_CODES
    assert not re.fullmatch(left_out, "other")
