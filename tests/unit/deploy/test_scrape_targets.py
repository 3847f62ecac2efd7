"""What Prometheus is told of the processes of `headrace up`."""

from pathlib import Path

import orjson

from headrace.deploy.scrape_targets import TargetsFile


def test_each_process_is_a_target_of_the_job_that_the_rules_know(tmp_path: Path) -> None:
    """Workers by their job: the rules look for no other name."""
    file = TargetsFile(tmp_path)
    file.write(workers=["h:2", "h:1"], gateway="h:3", autoscaler="h:4")
    assert orjson.loads(file.path.read_bytes()) == [
        {"targets": ["h:1", "h:2"], "labels": {"job": "headrace-worker"}},
        {"targets": ["h:3"], "labels": {"job": "headrace-gateway"}},
        {"targets": ["h:4"], "labels": {"job": "headrace-autoscaler"}},
    ]


def test_the_file_is_written_when_something_changed(tmp_path: Path) -> None:
    """A worker that went is a target no more; without a change nothing is written."""
    file = TargetsFile(tmp_path)
    file.write(workers=["h:1"], gateway="h:3", autoscaler=None)
    first = file.path.stat().st_ino
    file.write(workers=["h:1"], gateway="h:3", autoscaler=None)
    assert file.path.stat().st_ino == first
    file.write(workers=[], gateway="h:3", autoscaler=None)
    assert orjson.loads(file.path.read_bytes())[0]["targets"] == []
