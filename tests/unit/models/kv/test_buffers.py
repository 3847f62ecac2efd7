"""Receive buffers: used again when nobody looks at them, and never before."""

from headrace.models.kv.buffers import BufferPool


def test_a_buffer_in_use_is_not_given_out_again() -> None:
    """Also where only a part of it is looked at."""
    pool = BufferPool(100, max_bytes=1000)
    first = pool.take()
    part = first[50:]
    first[:] = b"a" * 100
    del first
    second = pool.take()
    second[:] = b"b" * 100
    assert part == b"a" * 50


def test_a_free_buffer_is_used_again() -> None:
    """Fresh memory is what costs."""
    pool = BufferPool(100, max_bytes=1000)
    first = pool.take()
    memory = first.obj
    del first
    again = pool.take()
    assert again.obj is memory
    assert len(again) == 100


def test_the_pool_keeps_no_more_than_its_limit() -> None:
    """More are made where more are needed, and dropped with their reader."""
    pool = BufferPool(100, max_bytes=250)
    views = [pool.take() for _ in range(5)]
    memories = {id(view.obj) for view in views}
    assert len(memories) == 5
    kept = {id(view.obj) for view in views[:2]}
    del views
    assert {id(view.obj) for view in [pool.take(), pool.take()]} == kept
