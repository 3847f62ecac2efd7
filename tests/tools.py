"""Programs that tests run and that no Python package carries: found on the path or in the
environment, where `make test` puts them. Nothing is skipped where one is missing: the test fails.
"""

import shutil
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 60.0


def tool(name: str) -> str:
    """The path of a program. Raises: AssertionError that says how to get it."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    assert found, f"{name} is neither on the path nor beside {sys.executable}: run `make {name}`"
    return found


def run(name: str, *words: str | Path, cwd: Path | None = None) -> str:
    """Run a program to its end. Raises: AssertionError with its output where it fails."""
    done = subprocess.run(
        [tool(name), *map(str, words)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
