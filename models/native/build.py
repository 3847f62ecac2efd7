"""Compiling the C++ sources for this machine, once, into the user's cache.

Owns which compiler and flags are used, and when a library is compiled anew. Knows nothing of what
the library does.
"""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from filelock import FileLock

from headrace.models.cache import user_cache_dir

SOURCES = Path(__file__).parent / "cpp"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
COMPILE_TIMEOUT_S = 300.0
"""It takes some 5 s on 2 cores."""

VERSION_TIMEOUT_S = 30.0

_WORK_PREFIX = "unfinished-"


class NativeUnavailableError(Exception):
    """The native step cannot be used here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def build_library(flags: tuple[str, ...] = FLAGS, *, damaged: Path | None = None) -> Path:
    """The path of the compiled library; compiles it if this machine has none yet, or if the one it
    has is `damaged`.

    Raises: NativeUnavailableError if there is no compiler, it does not accept the sources, or the
        cache cannot be written.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailableError("no C++ compiler (g++ or clang++) on the path")
    try:
        folder = user_cache_dir() / "native"
        library = folder / f"{_digest(compiler, flags)}.so"
        if library != damaged and library.exists():
            return library  # also in a cache that we can only read
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock", timeout=COMPILE_TIMEOUT_S):
            if library == damaged or not library.exists():
                _compile(compiler, flags, library)
    except (OSError, RuntimeError) as error:  # a lock's timeout, no home, no room, read-only
        raise NativeUnavailableError(f"no library can be compiled: {error}") from error
    return library


def build_in_advance() -> None:
    """The same while there is other work to do; who needs the library hears of a failure then."""
    with suppress(NativeUnavailableError):
        build_library()


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    """Put the library in its place, whole. A compiler whose parent was killed may still be writing
    in a folder of its own.
    """
    for left_over in library.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=_WORK_PREFIX, dir=library.parent, ignore_cleanup_errors=True
    ) as work:
        unfinished = Path(work) / library.name
        command = [compiler, *flags, str(SOURCES / "headrace.cpp"), "-o", str(unfinished)]
        done = _run(command, COMPILE_TIMEOUT_S)
        if done.returncode != 0:
            lines = done.stderr.splitlines()
            first = next((line for line in lines if "error" in line), done.stderr)
            raise NativeUnavailableError(f"{compiler} fails: {first.strip()}")
        unfinished.rename(library)


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"{command[0]} does not run: {error}") from error


def _digest(compiler: str, flags: tuple[str, ...]) -> str:
    """Changes with the sources, the compiler, the flags and the processor."""
    digest = hashlib.sha256()
    for text in (_version(compiler), *flags, platform.machine(), _processor()):
        digest.update(text.encode() + b"\0")
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


@cache
def _version(compiler: str) -> str:
    """What it says of itself; asked once, as the library is looked up several times at a start."""
    return _run([compiler, "--version"], VERSION_TIMEOUT_S).stdout


def _processor() -> str:
    """What `-march=native` goes by: model and features."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    lines = info.read_text("utf-8").split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)
