"""The Grafana dashboard's structure and names. Its queries run in `test_prometheus.py`."""

import re
from itertools import combinations
from typing import Any

from tests.unit.deploy.assets import exported, shipped

WIDTH = 24
BUILT_IN_VARIABLES = {"__rate_interval"}


def test_it_shows_only_metrics_that_are_exported() -> None:
    """A renamed metric would leave a panel empty."""
    used = shipped.metrics_in(query for _, query in shipped.queries())
    there = exported.sample_names(exported.worker_families() + exported.gateway_families())
    assert set() == used - there


def test_every_metric_that_is_exported_is_shown() -> None:
    """By one of its series at least; what is not worth a panel is not worth a metric."""
    used = shipped.metrics_in(query for _, query in shipped.queries())
    missing = [
        family.name
        for family in exported.worker_families() + exported.gateway_families()
        if not exported.sample_names([family]) & used and not family.name.endswith("_info")
    ]
    assert missing == []


def test_each_panel_has_an_id_and_a_place_of_its_own() -> None:
    """Grafana hides a panel that another one covers."""
    panels = shipped.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations(panels, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= WIDTH for panel in panels)


def test_each_query_asks_the_data_source_that_was_chosen() -> None:
    """No data source of the machine where the dashboard was made is built in."""
    for panel in shipped.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_each_variable_that_is_used_is_defined() -> None:
    """And each one that is defined is used."""
    defined = {variable["name"] for variable in shipped.dashboard()["templating"]["list"]}
    used = {name for _, query in shipped.queries() for name in re.findall(r"\$\{?(\w+)", query)}
    assert defined - {"datasource"} == used - BUILT_IN_VARIABLES


def test_the_provisioned_folder_is_where_the_compose_file_puts_the_dashboard() -> None:
    """Else Grafana starts without it."""
    provisioning = shipped.ASSETS / "grafana" / "provisioning"
    (providers,) = shipped.documents(provisioning / "dashboards" / "headrace.yml")
    folder = providers["providers"][0]["options"]["path"]
    (compose,) = shipped.documents(shipped.ASSETS / "compose" / "compose.yaml")
    assert any(
        f"{folder}/headrace.json" in one for one in compose["services"]["grafana"]["volumes"]
    )


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (apart_x or apart_y)
