"""The stored form of a block: read as it was written, and anything else is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.models.batch import BLOCK_TOKENS, KVFormat
from headrace.models.kv.codec import BlockCodec, BlockMismatchError
from headrace.models.request import KVBlock

IN_ANY_TIME = settings(deadline=None)  # the machine is shared

FORMAT = KVFormat("layers2-float32", 512)
CODEC = BlockCodec("fp-1", FORMAT)
IDS = tuple(range(BLOCK_TOKENS))
BLOCK = KVBlock(b"h" * 16, IDS, bytes(range(256)) * 2)


def stored(block: KVBlock = BLOCK, codec: BlockCodec = CODEC) -> bytes:
    """What Redis holds."""
    return codec.header(block) + bytes(block.data)


@IN_ANY_TIME
@given(
    block_hash=st.binary(min_size=16, max_size=16),
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=BLOCK_TOKENS, max_size=BLOCK_TOKENS),
    data=st.binary(min_size=512, max_size=512),
)
def test_a_block_is_read_as_it_was_written(block_hash: bytes, ids: list[int], data: bytes) -> None:
    """Bit by bit, and without a copy."""
    value = memoryview(stored(KVBlock(block_hash, tuple(ids), data)))
    payload = CODEC.decode(block_hash, ids, value)
    assert data == payload
    assert payload.obj is value.obj


@IN_ANY_TIME
@given(position=st.integers(0, CODEC.value_bytes - 1), flip=st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, flip: int) -> None:
    """In the header, the ids, the checksum or the payload."""
    value = bytearray(stored())
    value[position] ^= flip
    with pytest.raises(BlockMismatchError):
        CODEC.decode(BLOCK.hash, IDS, memoryview(value))


@IN_ANY_TIME
@given(length=st.integers(0, CODEC.value_bytes + 100))
def test_a_value_of_another_length_is_refused(length: int) -> None:
    """Truncated, or with something behind it."""
    value = (stored() + bytes(100))[:length]
    if length == CODEC.value_bytes:
        CODEC.decode(BLOCK.hash, IDS, memoryview(value))
        return
    with pytest.raises(BlockMismatchError, match="length"):
        CODEC.decode(BLOCK.hash, IDS, memoryview(value))


@pytest.mark.parametrize(
    "writer",
    [
        BlockCodec("fp-2", FORMAT),
        BlockCodec("fp-1", KVFormat("layers2-float16", 512)),
        BlockCodec("fp", KVFormat("-1layers2-float32", 512)),  # the same letters, cut elsewhere
    ],
    ids=["another model", "another format", "another cut"],
)
def test_another_writers_block_is_refused(writer: BlockCodec) -> None:
    """Whatever key it lies under."""
    with pytest.raises(BlockMismatchError):
        CODEC.decode(BLOCK.hash, IDS, memoryview(stored(codec=writer)))


def test_a_block_of_other_tokens_is_refused() -> None:
    """Cases J10: a hash that two sequences share must not give one the other's state."""
    with pytest.raises(BlockMismatchError, match="header"):
        CODEC.decode(BLOCK.hash, (*IDS[:-1], 99), memoryview(stored()))
    with pytest.raises(BlockMismatchError, match="header"):
        CODEC.decode(b"x" * 16, IDS, memoryview(stored()))


def test_a_block_of_the_wrong_size_is_not_written() -> None:
    """The engine's own mistake, found before it reaches Redis."""
    with pytest.raises(ValueError, match="512 bytes"):
        CODEC.header(KVBlock(BLOCK.hash, IDS, b"short"))
