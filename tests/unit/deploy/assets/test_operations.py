"""The operations guide against the code: its tables of metrics, commands, paths and settings."""

import re

from headrace.deploy.cli import COMMANDS
from headrace.schemas.settings import PREFIX, Settings
from tests.unit.deploy.assets import exported, shipped

TEXT = shipped.OPERATIONS.read_text("utf-8")
_ROW = re.compile(r"^\| `(headrace_\w+)(?:\{([\w,]+)\})?` \| (\w+) \|", re.MULTILINE)


def test_the_tables_list_every_metric_with_its_kind() -> None:
    """All that is exported, and nothing else."""
    families = exported.worker_families() + exported.gateway_families()
    there = {
        (family.name + "_total" if family.type == "counter" else family.name, family.type)
        for family in families
    }
    assert there == {(name, kind) for name, _, kind in _ROW.findall(TEXT)}


def test_the_tables_name_the_labels() -> None:
    """Where a series is there from the start, so that it can be seen."""
    listed = {name: set(filter(None, labels.split(","))) for name, labels, _ in _ROW.findall(TEXT)}
    for family in exported.worker_families() + exported.gateway_families():
        if family.type == "histogram" or not family.samples:
            continue
        name = family.name + "_total" if family.type == "counter" else family.name
        assert set(family.samples[0].labels) == listed[name], name


def test_the_commands_that_it_names_exist() -> None:
    """`headrace …` in the text."""
    named = set(re.findall(r"\bheadrace ([a-z]+)", TEXT)) - {"is"}
    assert named
    assert set() == named - set(COMMANDS)


def test_the_settings_that_it_names_exist() -> None:
    """HEADRACE_… in the text."""
    named = set(re.findall(rf"\b{PREFIX}([A-Z_]+)\b", TEXT))
    assert named
    assert set() == {name.lower() for name in named} - set(Settings.model_fields)


def test_the_files_that_it_names_exist() -> None:
    """Below the assets, the documents or the repository."""
    named = re.findall(r"`([\w./-]+\.(?:md|yml|yaml|json)|[\w-]+/[\w./-]*[\w-])`", TEXT)
    places = (
        shipped.ASSETS,
        shipped.OPERATIONS.parent,
        shipped.ROOT,
        shipped.ASSETS / "kubernetes/base",
    )
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert named
    assert missing == []


def test_the_panels_that_it_names_exist() -> None:
    """In italics, in the entries of the alerts."""
    titles = {panel["title"] for panel in shipped.dashboard()["panels"]}
    alerts = TEXT[TEXT.index("## Alerts") : TEXT.index("## Metrics")]
    named = set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", alerts))
    assert named
    assert set() == named - titles
