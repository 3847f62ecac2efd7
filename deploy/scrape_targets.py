"""Where Prometheus finds the processes of `headrace up`, as a file for its `file_sd_configs`.

Their ports are chosen as they start, and workers come and go: Prometheus reads the file anew when
it changes.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import orjson

NAME = "prometheus-targets.json"


class TargetsFile:
    """The file in `folder`; the jobs are named as the shipped rules want them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._written = b""

    def write(
        self,
        *,
        workers: Iterable[str],
        gateway: str,
        autoscaler: str | None,
        gateway_tls: bool = False,
    ) -> None:
        """Say where they are (host:port), if that is not what the file says. Raises: OSError."""
        labels = {"job": "headrace-gateway"} | ({"__scheme__": "https"} if gateway_tls else {})
        groups = [
            {"targets": sorted(workers), "labels": {"job": "headrace-worker"}},
            {"targets": [gateway], "labels": labels},
        ]
        if autoscaler is not None:
            groups.append({"targets": [autoscaler], "labels": {"job": "headrace-autoscaler"}})
        content = orjson.dumps(groups, option=orjson.OPT_INDENT_2)
        if content == self._written:
            return
        beside = self.path.with_suffix(".new")
        beside.write_bytes(content)
        os.replace(beside, self.path)  # Prometheus never sees half of it
        self._written = content
