"""How results leave a benchmark: a table for people, and JSON lines that say where they are
from.
"""

import json
import platform
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from benchmarks.lib.process import ROOT

_LIBRARIES = ("torch", "transformers")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        words = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        return f"| {' | '.join(words)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(line(cells) for cells in (table[0], rule, *table[1:]))


def number(value: float | None, *, digits: int = 0) -> str:
    """A number with thousands separators, or a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


@cache
def machine() -> dict[str, Any]:
    """What a figure depends on besides the code: CPU, memory, versions, and the commit."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cpu_flags": sorted(set(_first("/proc/cpuinfo", "flags").split()) & _TELLING_FLAGS),
        "num_cpus": _num_cpus(),
        "memory_gb": round(int(_first("/proc/meminfo", "MemTotal").split()[0]) / 1024**2, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _LIBRARIES},
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "-s") else ""),
        "load": Path("/proc/loadavg").read_text("ascii").split()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


_TELLING_FLAGS = {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8"}


def write_line(results: IO[str] | None, row: dict[str, Any]) -> None:
    """Print a result as one JSON line, and add it to the results file, if there is one."""
    line = json.dumps(row | {"machine": machine()})
    print(line, flush=True)
    if results is not None:
        results.write(line + "\n")
        results.flush()


def _num_cpus() -> int:
    return Path("/proc/cpuinfo").read_text("utf-8").count("processor\t")


def _first(path: str, name: str) -> str:
    for line in Path(path).read_text("utf-8").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "0"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
