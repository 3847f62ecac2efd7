"""What `headrace up` does before it starts anything: folders, options, words."""

from pathlib import Path

import pytest

from headrace.deploy import cli
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.commands.up import ready_lines
from headrace.deploy.local_services import StackError
from headrace.deploy.up import Stack, UpOptions, _folder, run_up
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


def test_a_scaled_stack_says_so_when_it_is_ready() -> None:
    """No worker may run yet; where all metrics are is said, too."""
    targets = Path("logs/prometheus-targets.json")
    stack = Stack(load_settings(), Path("logs"), [], (), Policy(0, 4), targets)
    lines = ready_lines(stack)
    assert "workers    0 to 4, by lag; none yet" in lines
    assert f"metrics    all in {targets}" in lines


def test_workers_share_the_cores_by_the_most_that_there_may_be() -> None:
    """Else each of the first would slow down when the next comes."""
    scaled, fixed = UpOptions(autoscale=Policy(1, 4)), UpOptions(3)
    assert (scaled.first_workers, scaled.most_workers) == (1, 4)
    assert (fixed.first_workers, fixed.most_workers) == (3, 3)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--autoscale", "4"], "is not MIN..MAX"),
        (["--autoscale", "3..1"], "MIN 3 is above MAX 1"),
        (["--autoscale", "0..2", "--workers", "1"], "one or the other"),
        (["--autoscale-target", "3"], "need --autoscale"),
        (["--autoscale-window", "3"], "need --autoscale"),
        (["--autoscale", "0..2", "--autoscale-target", "0"], "autoscale-target"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_of_the_autoscaler(
    words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line, before anything is started."""
    assert cli.run(["up", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert wrong in line
