"""The saved class path: used only if every jar is there in full; then nothing is fetched."""

import json
from pathlib import Path

import pytest

from headrace.deploy.kafka_jars import KAFKA_VERSION, kafka_class_path, saved_class_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / f"kafka-{KAFKA_VERSION}"
    folder.mkdir()
    (folder / "a.jar").write_bytes(b"12345")
    (folder / "b.jar").write_bytes(b"1")
    (folder / "classpath.json").write_text(json.dumps({"b.jar": 1, "a.jar": 5}))
    return folder


def test_a_complete_folder_is_used_as_it_is(folder: Path) -> None:
    """The jars come in the saved order, and nobody is told of a fetch."""
    said: list[str] = []
    jars = kafka_class_path(folder.parent, on_progress=said.append)
    assert jars == [folder / "b.jar", folder / "a.jar"]
    assert said == []


@pytest.mark.parametrize("damage", ["missing", "short", "no index", "broken index", "empty index"])
def test_a_damaged_folder_counts_as_none(folder: Path, damage: str) -> None:
    """One jar missing or cut short, or no readable index: fetch again."""
    if damage == "missing":
        (folder / "a.jar").unlink()
    elif damage == "short":
        (folder / "a.jar").write_bytes(b"123")
    elif damage == "no index":
        (folder / "classpath.json").unlink()
    elif damage == "broken index":
        (folder / "classpath.json").write_text('{"b.jar": 1, ')
    else:
        (folder / "classpath.json").write_text("{}")
    assert saved_class_path(folder) is None
