"""The threads of native decoders: as many as the system gives, and none left behind."""

import ctypes
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from headrace.models.native import build, convert
from headrace.models.native.library import Library, NativeDecoder
from headrace.models.native.runner import NativeRunner
from tests.unit.models.native.decoders import (
    MAX_ROWS,
    MAX_TOKENS,
    NUM_BLOCKS,
    ids_of,
    make_model,
    make_runner,
    run_one,
)


@contextmanager
def no_more_threads() -> Iterator[None]:
    """No new thread gets its stack."""
    libc = ctypes.CDLL(None)
    before, changed = (ctypes.create_string_buffer(64) for _ in range(2))
    for attributes in (before, changed):
        assert libc.pthread_getattr_default_np(attributes) == 0
    assert libc.pthread_attr_setstacksize(changed, ctypes.c_size_t(1 << 47)) == 0
    assert libc.pthread_setattr_default_np(changed) == 0
    try:
        yield
    finally:
        assert libc.pthread_setattr_default_np(before) == 0


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_without_more_threads_the_caller_does_all_the_work() -> None:
    """The process was ended instead."""
    model, library = make_model(), Library()
    usual = make_runner(model)
    expected = run_one(usual, ids_of(1, 70))
    shape = usual._decoder.shape
    before = num_threads()
    with no_more_threads():  # only here: torch ends the process where it gets none
        decoder = NativeDecoder(library, shape, num_threads=4)
    assert num_threads() == before
    convert._hand_over(model, decoder)
    pool_bytes = NUM_BLOCKS * shape.block_bytes
    runner = NativeRunner(
        decoder, kv_pool_bytes=pool_bytes, max_tokens=MAX_TOKENS, max_rows=MAX_ROWS
    )
    assert torch.equal(run_one(runner, ids_of(1, 70)), expected)


def test_decoders_leave_no_thread() -> None:
    model = make_model()
    run_one(make_runner(model), ids_of(1, 9))  # torch's own threads begin
    before = num_threads()
    for _ in range(20):
        run_one(make_runner(model, num_threads=3), ids_of(1, 9))
    assert num_threads() == before


CLOSES_POOLS = """
#include "pool.h"

extern "C" int run_and_close(int num_pools) {
  std::atomic<int> num_done{0};
  for (int i = 0; i < num_pools; i++) {
    hr::Pool pool(9);
    for (int phase = 0; phase < i % 4; phase++) pool.run(5, [&](int, int) { num_done++; });
  }
  return num_done;
}
"""


def test_closing_never_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that looked for work just then missed the end, and was waited for for ever."""
    make_runner(make_model())  # which asks the system for the tile registers
    sources = tmp_path / "cpp"
    sources.mkdir()
    for header in ("pool.h", "vec.h"):
        shutil.copy(build.SOURCES / header, sources)
    (sources / "headrace.cpp").write_text(CLOSES_POOLS)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "user_cache_dir", lambda: tmp_path)
    library = ctypes.CDLL(str(build.build_library()))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(library.run_and_close(4000)), daemon=True)
    thread.start()
    thread.join(15)
    assert found == [5 * 1000 * (1 + 2 + 3)]
