"""Blocks are conserved, cached ones are given away last and oldest first, and doubt is a miss."""

import pytest

from headrace.models.block_pool import BlockPool

IDS = tuple(range(32))
OTHER_IDS = tuple(range(1, 33))


def cached(pool: BlockPool, name: bytes) -> int:
    """A block that was computed and released."""
    block_id = pool.allocate()
    pool.register(block_id, name, IDS)
    pool.release(block_id)
    return block_id


def test_free_blocks_go_before_cached_ones_and_the_oldest_of_these_first() -> None:
    """The content of an evicted block is gone."""
    pool = BlockPool(3)
    first, second = cached(pool, b"first"), cached(pool, b"second")
    free = pool.allocate()
    assert free not in {first, second}
    assert pool.num_evicted == 0
    assert [pool.allocate(), pool.allocate()] == [first, second]
    assert (pool.num_evicted, pool.num_available) == (2, 0)
    assert pool.find(b"first", IDS) is None
    pool.check_integrity({0: 1, 1: 1, 2: 1})


def test_use_makes_a_block_young_again() -> None:
    """Of two cached blocks, the one that was held since is evicted last."""
    pool = BlockPool(2)
    first, second = cached(pool, b"first"), cached(pool, b"second")
    pool.hold(first)
    pool.release(first)
    assert [pool.allocate(), pool.allocate()] == [second, first]


def test_without_a_block_there_is_an_error() -> None:
    """Held blocks are never given away."""
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(KeyError):
        pool.allocate()


def test_a_block_stays_while_somebody_holds_it() -> None:
    """It is free for others after the last release."""
    pool = BlockPool(1)
    block_id = pool.allocate()
    pool.register(block_id, b"a", IDS)
    pool.hold(block_id)
    pool.release(block_id)
    assert (pool.num_available, pool.num_held) == (0, 1)
    pool.check_integrity({block_id: 1})
    pool.release(block_id)
    assert (pool.num_available, pool.num_held) == (1, 0)
    pool.check_integrity({})


def test_other_tokens_under_the_same_name_are_a_miss() -> None:
    """A name that two contents share gives neither the other's state."""
    pool = BlockPool(2)
    block_id = cached(pool, b"a")
    assert (pool.find(b"a", IDS), pool.find(b"a", OTHER_IDS)) == (block_id, None)


def test_the_first_block_of_a_name_stays() -> None:
    """The second is a plain block, free once it is released."""
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, b"a", IDS)
    pool.register(second, b"a", IDS)
    assert pool.find(b"a", IDS) == first
    pool.release(second)
    pool.check_integrity({first: 1})
    assert pool.allocate() == second


def test_an_unregistered_block_is_found_by_nobody() -> None:
    """Also while it is held by others, and it is free when these release it."""
    pool = BlockPool(1)
    block_id = pool.allocate()
    pool.register(block_id, b"a", IDS)
    pool.unregister(block_id)
    pool.unregister(block_id)
    assert pool.find(b"a", IDS) is None
    pool.release(block_id)
    pool.check_integrity({})
    assert pool.num_available == 1


@pytest.mark.parametrize("holders", [{}, {0: 2}, {0: 1, 1: 1}])
def test_check_integrity_finds_what_does_not_balance(holders: dict[int, int]) -> None:
    """Blocks that rows hold and the pool does not know, and the other way round."""
    pool = BlockPool(2)
    assert pool.allocate() == 0
    with pytest.raises(AssertionError, match="hold"):
        pool.check_integrity(holders)
    pool.check_integrity({0: 1})


def test_a_pool_needs_a_block() -> None:
    """Nothing could ever run."""
    with pytest.raises(ValueError, match="single block"):
        BlockPool(0)
