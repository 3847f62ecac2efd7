"""How much CPU time the machine spent on others while one process tree worked (Linux).

On a loaded machine OpenMP's barriers spin and figures collapse: a run during which others computed
does not count.
"""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = {3, 4}  # idle, iowait
_COUNTED_FIELDS = 8  # up to steal; guest time is within user time


def busy_ticks(stat: str) -> int:
    """Ticks of all CPUs that were not idle, from the text of /proc/stat."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:]][:_COUNTED_FIELDS]
    return sum(ticks for index, ticks in enumerate(fields) if index not in _IDLE_FIELDS)


def process_ticks(stat: str) -> tuple[int, int]:
    """Parent id and ticks (waited-for children included), from the text of /proc/<pid>/stat."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15])


class OthersClock:
    """Counts, from now on, CPU time that is not of the process `pid` and its descendants.

    Units: the kernel counts in ticks of 10 ms. Steal time of a virtual machine counts as others'.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._now()

    def elapsed_s(self) -> float:
        """Others' CPU seconds since the clock was made."""
        return max(self._now() - self._before, 0) / _TICKS_PER_S

    def _now(self) -> int:
        own = _tree_ticks(self._pid)
        return busy_ticks(Path("/proc/stat").read_text("ascii")) - own


def _tree_ticks(root: int) -> int:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent, ticks[int(path.parent.name)] = process_ticks(path.read_text("utf-8", "replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        children.setdefault(parent, []).append(int(path.parent.name))
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children.get(pid, [])
    return total
