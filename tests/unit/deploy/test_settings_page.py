"""The page of all settings says what the code does."""

from pathlib import Path

from headrace.deploy.settings_page import page
from headrace.schemas.settings import Settings


def test_the_committed_copy_is_current() -> None:
    """Else run `python -m headrace.deploy.settings_page > docs/settings.md`."""
    copy = Path(__file__).parents[3] / "docs" / "settings.md"
    assert copy.read_text("utf-8") == page()


def test_every_setting_is_explained() -> None:
    """In a line of its own, which a newcomer understands without the code."""
    assert all(field.description for field in Settings.model_fields.values())
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert (
        [row.count(" | ") for row in rows]
        == [4] * len(rows)
        == [4] * (1 + len(Settings.model_fields))
    )
