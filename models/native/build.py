"""Compiling the C++ sources for this machine, once, into the user's cache.

Owns which compiler and flags are used, and when a library is compiled anew. Knows nothing of what
the library does.
"""

import hashlib
import platform
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from headrace.models.cache import user_cache_dir

SOURCES = Path(__file__).parent / "cpp"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
COMPILE_TIMEOUT_S = 300.0
"""It takes some 5 s on 2 cores."""


class NativeUnavailableError(Exception):
    """The native step cannot be used here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def build_library(flags: tuple[str, ...] = FLAGS) -> Path:
    """The path of the compiled library; compiles it if this machine has none yet.

    Raises: NativeUnavailableError if there is no compiler, or it does not accept the sources.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailableError("no C++ compiler (g++ or clang++) on the path")
    folder = user_cache_dir() / "native"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{_digest(compiler, flags)}.so"
    with FileLock(folder / "lock", timeout=COMPILE_TIMEOUT_S):
        if not library.exists():
            _compile(compiler, flags, library)
    return library


def build_in_advance() -> None:
    """The same while there is other work to do; who needs the library hears of a failure then."""
    with suppress(NativeUnavailableError):
        build_library()


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    unfinished = library.with_suffix(".unfinished")
    command = [compiler, *flags, str(SOURCES / "headrace.cpp"), "-o", str(unfinished)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"{compiler} does not run: {error}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise NativeUnavailableError(f"{compiler} fails: {first.strip()}")
    unfinished.rename(library)


def _digest(compiler: str, flags: tuple[str, ...]) -> str:
    """Changes with the sources, the compiler, the flags and the processor."""
    digest = hashlib.sha256()
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    for text in (version.stdout, *flags, platform.machine(), _processor()):
        digest.update(text.encode() + b"\0")
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What `-march=native` goes by: model and features."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    lines = info.read_text("utf-8").split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)
