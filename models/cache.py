"""The user's cache folder, and running a downloader that fills a part of it.

Owns where the cache lies and how a download's progress is seen. Knows nothing of what is fetched.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRESS_INTERVAL_S = 0.5


def user_cache_dir() -> Path:
    """Our folder in the user's cache: `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`."""
    # Not a setting of ours but the desktop's; the one name read outside schemas.settings.
    base = os.environ.get("XDG_CACHE_HOME")  # noqa: TID251
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def folder_bytes(folder: Path) -> int:
    """Size of all files under `folder`; files that vanish meanwhile count 0."""
    total_bytes = 0
    for path in folder.rglob("*"):
        try:
            total_bytes += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # a downloader renames its files while we look
    return total_bytes


def run_downloader(
    command: Sequence[str | Path],
    *,
    log_path: Path,
    timeout_s: float,
    on_tick: Callable[[], None] = lambda: None,
) -> int:
    """Run a program to its end, its output appended to `log_path`; returns its exit code.

    `on_tick` is called twice a second meanwhile.
    Raises: `TimeoutError` after `timeout_s`; the program is killed then, as on any exception.
    """
    deadline_s = time.monotonic() + timeout_s
    with (
        log_path.open("ab") as log,
        subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while process.poll() is None:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{command[0]} took more than {timeout_s:.0f} s")
                on_tick()
                time.sleep(PROGRESS_INTERVAL_S)
        except BaseException:
            process.kill()
            raise
        return process.returncode
