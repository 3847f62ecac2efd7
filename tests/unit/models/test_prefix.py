"""Names of KV blocks."""

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.prefix import block_hashes, cache_salt, next_hash, root_hash

IDS = list(range(3 * BLOCK_TOKENS + 5))
SALT = b"salt"


def test_full_blocks_only() -> None:
    """The tokens of a last, partial block have no name."""
    assert [len(block_hashes(IDS[:n], salt=SALT)) for n in (0, 31, 32, 33, 63, 64)] == [
        0, 0, 1, 1, 1, 2,
    ]  # fmt: skip


def test_a_name_stands_for_the_whole_prefix() -> None:
    """Equal beginnings have equal names; one token changes its block and all behind it."""
    names = block_hashes(IDS, salt=SALT)
    assert block_hashes(IDS[: 2 * BLOCK_TOKENS], salt=SALT) == names[:2]
    changed = block_hashes([*IDS[:40], 999, *IDS[41:]], salt=SALT)
    assert changed[0] == names[0]
    assert not set(changed[1:]) & set(names)


def test_names_can_be_chained_one_by_one() -> None:
    """As a generation does while it grows."""
    name = root_hash(SALT)
    for index, expected in enumerate(block_hashes(IDS, salt=SALT)):
        name = next_hash(name, IDS[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
        assert name == expected


def test_the_salt_separates() -> None:
    """Weights, format and tenant each, and none can be confused with another's."""
    salts = {
        cache_salt("f", "k", "t"),
        cache_salt("g", "k", "t"),
        cache_salt("f", "l", "t"),
        cache_salt("f", "k", "u"),
        cache_salt("f", "kt", ""),
        cache_salt("fk", "", "t"),
    }
    assert len(salts) == 6
    assert len({block_hashes(IDS, salt=salt)[0] for salt in salts}) == 6


def test_names_never_change() -> None:
    """They are keys in a store that outlives a version: these are fixed for ever."""
    assert (
        block_hashes(list(range(32)), salt=b"salt")[0].hex() == "ea0d242dcb52f7e9a0b7a992abae624f"
    )
