"""Where `headrace up` keeps what it keeps."""

from pathlib import Path

import pytest

from headrace.deploy.local_services import StackError
from headrace.deploy.up import UpOptions, _folder, run_up
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import load_settings

GIVEN = {"kafka": "k:9092", "redis": "redis://r:6379/0"}


def test_with_services_of_somebody_else_any_number_may_run() -> None:
    """Nothing is to be kept: each has a temporary folder, which is deleted."""
    settings = load_settings(**GIVEN)
    with _folder(settings, UpOptions()) as first, _folder(settings, UpOptions()) as second:
        assert first != second
    assert not first.exists()


@pytest.mark.parametrize("flags", [{}, GIVEN], ids=["own services", "given services"])
def test_a_folder_that_was_asked_for_is_used_by_one_alone(
    flags: dict[str, str], tmp_path: Path
) -> None:
    """A second one is refused; what is in the folder stays."""
    settings, options = load_settings(**flags), UpOptions(data_dir=tmp_path / "up")
    with _folder(settings, options) as folder:
        assert folder == tmp_path / "up"
        with pytest.raises(StackError, match="another `headrace up`"), _folder(settings, options):
            pass
    assert folder.exists()


def test_the_name_of_one_worker_is_refused_for_several() -> None:
    """They would all be in the group under it, and end each other."""
    with pytest.raises(SettingsError, match="GROUP_INSTANCE_ID names one worker"):
        run_up(load_settings(group_instance_id="a"), UpOptions(), on_ready=print)
