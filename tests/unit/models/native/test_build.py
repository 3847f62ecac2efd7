"""Compiling the native library: once, at once for all, and refusals that say why."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from headrace.models.native import build
from headrace.models.native.build import NativeUnavailableError, build_library
from headrace.models.native.library import Library


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(build, "user_cache_dir", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cpp"
    folder.mkdir()
    (folder / "headrace.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder / "headrace.cpp"


def test_it_is_compiled_once_for_all(empty_cache: Path, small_source: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build_library(), range(4)))
    (path,) = paths
    made_ns = path.stat().st_mtime_ns
    assert build_library() == path
    assert path.stat().st_mtime_ns == made_ns
    assert [p.suffix for p in path.parent.iterdir() if p.name != "lock"] == [".so"]


def test_changed_sources_or_flags_are_compiled_anew(empty_cache: Path, small_source: Path) -> None:
    first = build_library()
    small_source.write_text('extern "C" int answer() { return 43; }\n')
    second = build_library()
    third = build_library((*build.FLAGS, "-O1"))
    assert len({first, second, third}) == 3


def test_no_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(NativeUnavailableError, match=r"no C\+\+ compiler"):
        build_library()


def test_sources_that_do_not_compile(empty_cache: Path, small_source: Path) -> None:
    small_source.write_text("this is not C++\n")
    with pytest.raises(NativeUnavailableError, match=r"fails: .*error"):
        build_library()
    assert not list((empty_cache / "native").glob("*.so"))


def test_what_killed_runs_left_is_swept_away(empty_cache: Path, small_source: Path) -> None:
    left = empty_cache / "native" / "unfinished-abc"
    left.mkdir(parents=True)
    (left / "half.so").write_bytes(b"half")
    build_library()
    assert not left.exists()


@pytest.mark.timeout(120)  # two compilations
def test_a_damaged_library_is_compiled_again(empty_cache: Path) -> None:
    """It was taken for good for ever, and the worker was slow for ever."""
    path = build_library()
    path.write_bytes(b"not a library")
    assert Library().kernels(torch.float32)


def test_a_cache_that_cannot_be_made_is_a_refusal(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker died of it, where it could have run without."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(build, "user_cache_dir", lambda: tmp_path / "file")
    with pytest.raises(NativeUnavailableError, match="no library can be compiled"):
        build_library()


def test_no_home_is_a_refusal(small_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "user_cache_dir", no_home)
    with pytest.raises(NativeUnavailableError, match="home"):
        build_library()


def test_a_compiled_library_needs_no_lock(empty_cache: Path, small_source: Path) -> None:
    """As in an image whose files cannot be written."""
    path = build_library()
    (path.parent / "lock").unlink()
    (path.parent / "lock").mkdir()
    assert build_library() == path


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 3", "kill -9 $$"])
def test_a_compiler_that_does_not_work(
    script: str,
    empty_cache: Path,
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that hangs, too: also when it is asked for its version."""
    broken = tmp_path / "c++"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setattr(build, "COMPILERS", (str(broken),))
    monkeypatch.setattr(build, "VERSION_TIMEOUT_S", 0.2)
    monkeypatch.setattr(build, "COMPILE_TIMEOUT_S", 0.2)
    with pytest.raises(NativeUnavailableError):
        build_library()


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(NativeUnavailableError, match="cannot be loaded"):
        Library(broken)
