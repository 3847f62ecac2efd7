"""The user's cache folder, and running a downloader that fills a part of it.

Owns where the cache lies, how a folder in it comes to be whole or not at all, and how a download's
progress is seen. Knows nothing of what is fetched.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRESS_INTERVAL_S = 0.5

# Runs as `python -c`, then becomes the server: PR_SET_PDEATHSIG (1) survives exec. Not a
# preexec_fn: Python code between fork and exec may deadlock in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0) != 0:
    raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
if os.getppid() != int(sys.argv[1]):
    sys.exit("parent process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


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


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` if the block ends without an error.

    The caller holds a lock. What runs that were killed left behind is swept away first.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left_over in folder.parent.glob(f".{folder.name}-*"):
        # Not strictly: where no kernel ends it, a killed run's downloader may still be writing.
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        new = work / "new"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(work / "old")
        new.rename(folder)
    finally:
        shutil.rmtree(work)


def dying_with_us(args: Sequence[str]) -> list[str]:
    """The same command, made to end (SIGKILL) when the thread that starts it ends; Linux only."""
    if sys.platform != "linux":
        return list(args)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *args]


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
            dying_with_us([str(word) for word in command]),
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
