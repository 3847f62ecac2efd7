"""Resident size and CPU time of running processes, from /proc (Linux)."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from benchmarks.lib.cpu_time import OthersClock

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
INTERVAL_S = 1.0


def resident_mb(pid: int) -> float:
    """Resident size now."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise ProcessLookupError(pid)


def used_cpu_s(pid: int) -> float:
    """CPU time so far, of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Watch:
    """A context manager: how many cores each process used meanwhile, and programs that are not
    of this benchmark ("others"), and one process's size.
    """

    def __init__(self, pids: Mapping[str, int], sized: str) -> None:
        self.cores: dict[str, float] = {}
        self.sizes_mb: list[float] = []
        """Of the process `sized`, once a second."""
        self._pids, self._sized = pids, pids[sized]
        self._others = OthersClock(os.getpid())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="process-watch")

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._before = {name: used_cpu_s(pid) for name, pid in self._pids.items()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        passed_s = time.monotonic() - self._began_s
        for name, pid in self._pids.items():
            self.cores[name] = round((used_cpu_s(pid) - self._before[name]) / passed_s, 2)
        self.cores["others"] = round(self._others.elapsed_s() / passed_s, 2)

    def _sample(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self.sizes_mb.append(resident_mb(self._sized))
