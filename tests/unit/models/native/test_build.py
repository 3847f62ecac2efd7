"""Compiling the native library: once, at once for all, and refusals that say why."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(NativeUnavailableError, match="cannot be loaded"):
        Library(broken)
