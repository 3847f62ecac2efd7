"""KV blocks on a real Redis: read as they were written, and every doubt is a miss."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis import Redis

from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.models.batch import BLOCK_TOKENS, KVFormat
from headrace.models.kv.store import BlockName, BlockStore, Fetched
from headrace.models.request import KVBlock
from headrace.schemas.errors import UnavailableError
from headrace.schemas.keys import Keys
from tests.fakes import silent_server
from tests.kv_blocks import FINGERPRINT, FORMAT, BlockEngine, data_of, tokens

pytestmark = pytest.mark.integration

IN_TIME_S = 5.0


@pytest.fixture
def keys(topic_prefix: str) -> Keys:
    """Keys of this test's own."""
    return Keys(topic_prefix)


@pytest.fixture
def client(redis_url: str) -> Iterator["Redis"]:
    """A plain client, to look and to do damage."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def store(redis_url: str, keys: Keys) -> Iterator[BlockStore]:
    """The blocks of this test's pipeline."""
    store = BlockStore(redis_url, keys, FINGERPRINT, FORMAT)
    yield store
    store.close()


def chain(num_blocks: int, *, tenant: str = "default", seed: int = 0) -> list[BlockName]:
    """The names of a sequence's blocks."""
    ids = tokens(num_blocks, seed=seed)
    hashes = BlockEngine().learn(ids, tenant)
    return [
        BlockName(one, tuple(ids[n * BLOCK_TOKENS : (n + 1) * BLOCK_TOKENS]))
        for n, one in enumerate(hashes)
    ]


def put(store: BlockStore, names: Sequence[BlockName], kv_format: KVFormat = FORMAT) -> list[bytes]:
    """Write the blocks with the content that belongs to them."""
    blocks = [KVBlock(name.hash, name.token_ids, data_of(name.hash, kv_format)) for name in names]
    return store.put(blocks, ttl_s=60, deadline_s=time.monotonic() + IN_TIME_S)


def fetch(store: BlockStore, names: Sequence[BlockName]) -> Fetched:
    return store.fetch(names, deadline_s=time.monotonic() + IN_TIME_S)


def key_of(keys: Keys, name: BlockName) -> str:
    return keys.kv_block(FINGERPRINT, FORMAT.name, name.hash)


def assert_whole(found: Fetched, names: Sequence[BlockName]) -> None:
    """Exactly these blocks, with their own content."""
    assert [block.hash for block in found.blocks] == [name.hash for name in names]
    assert all(block.data == data_of(block.hash) for block in found.blocks)


def test_a_chain_is_read_as_it_was_written(store: BlockStore) -> None:
    """In order; the number of bytes is what was moved."""
    names = chain(10)
    assert put(store, names) == []
    found = fetch(store, names)
    assert_whole(found, names)
    assert (found.missing, found.deleted) == (None, [])
    assert found.num_bytes == 10 * store.value_bytes


def test_blocks_have_a_time_to_live(store: BlockStore, client: "Redis", keys: Keys) -> None:
    """It is renewed for those that are there."""
    names = chain(2)
    put(store, names[:1])
    assert 0 < client.ttl(key_of(keys, names[0])) <= 60
    deadline_s = time.monotonic() + IN_TIME_S
    held = store.refresh([name.hash for name in names], ttl_s=999, deadline_s=deadline_s)
    assert held == [True, False]
    assert client.ttl(key_of(keys, names[0])) > 60


@pytest.mark.parametrize("gap", range(7))
def test_a_gap_ends_the_chain(store: BlockStore, client: "Redis", keys: Keys, gap: int) -> None:
    """Cases J3: an evicted block, wherever it is; the connection is in order afterwards."""
    names = chain(7)
    put(store, names)
    client.delete(key_of(keys, names[gap]))
    found = fetch(store, names)
    assert_whole(found, names[:gap])
    assert found.missing == names[gap].hash
    assert_whole(fetch(store, names[:gap]), names[:gap])


def damage(value: bytes, how: str) -> bytes:
    """A stored value as it must not be."""
    middle = len(value) // 2
    return {
        "flipped": value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :],
        "truncated": value[:-1],
        "longer": value + b"x",
        "huge": value * 50,
        "empty": b"",
        "pickle": b"\x80\x04." + value[3:],
    }[how]


@pytest.mark.parametrize("how", ["flipped", "truncated", "longer", "huge", "empty", "pickle"])
def test_a_damaged_block_is_deleted_with_all_behind_it(
    store: BlockStore, client: "Redis", keys: Keys, how: str
) -> None:
    """A miss; what stands before it is used, the next call is in order."""
    names = chain(6)
    put(store, names)
    key = key_of(keys, names[2])
    value = client.get(key)
    assert isinstance(value, bytes)
    client.set(key, damage(value, how))
    found = fetch(store, names)
    assert_whole(found, names[:2])
    assert found.deleted == [name.hash for name in names[2:]]
    assert client.exists(*(key_of(keys, name) for name in names)) == 2
    assert_whole(fetch(store, names[:2]), names[:2])


def test_a_key_of_another_type_is_a_miss_and_deleted(
    store: BlockStore, client: "Redis", keys: Keys
) -> None:
    """Somebody made a hash where a block should be."""
    names = chain(3)
    put(store, names)
    key = key_of(keys, names[1])
    client.delete(key)
    client.hset(key, "a", "b")
    found = fetch(store, names)
    assert_whole(found, names[:1])
    assert not client.exists(key)


def test_blocks_under_each_others_keys_are_misses(
    store: BlockStore, client: "Redis", keys: Keys
) -> None:
    """Cases J10: whole and undamaged, but another sequence's."""
    mine, other = chain(1)[0], chain(1, seed=1)[0]
    put(store, [mine, other])
    client.copy(key_of(keys, other), key_of(keys, mine), replace=True)
    assert fetch(store, [mine]).deleted == [mine.hash]


def test_models_and_formats_have_blocks_of_their_own(redis_url: str, keys: Keys) -> None:
    """Cases J8: a rolling upgrade misses, and does not overwrite."""
    names = chain(2)
    wide = KVFormat("wide-format", 2 * FORMAT.block_bytes)
    stores = [
        BlockStore(redis_url, keys, FINGERPRINT, FORMAT),
        BlockStore(redis_url, keys, "fp-2", FORMAT),
        BlockStore(redis_url, keys, FINGERPRINT, wide),
    ]
    formats = [FORMAT, FORMAT, wide]
    for writer, kv_format in zip(stores, formats, strict=True):
        assert fetch(writer, names).missing == names[0].hash
        put(writer, names, kv_format)
    for reader in stores:
        assert len(fetch(reader, names).blocks) == 2
        reader.close()


def test_tenants_have_blocks_of_their_own(store: BlockStore) -> None:
    """Cases J10: the same tokens of another tenant are another name."""
    put(store, chain(2))
    assert fetch(store, chain(2, tenant="other")).blocks == []


def test_deleted_blocks_are_gone(store: BlockStore) -> None:
    """Also where some were gone before."""
    names = chain(3)
    put(store, names[:2])
    store.delete([name.hash for name in names], deadline_s=time.monotonic() + IN_TIME_S)
    assert fetch(store, names).missing == names[0].hash


def test_a_kept_block_is_not_overwritten_by_the_next_fetch(store: BlockStore) -> None:
    """Buffers are used again only when nobody looks at them."""
    first, second = chain(5), chain(5, seed=1)
    put(store, [*first, *second])
    kept = fetch(store, first)
    assert_whole(fetch(store, second), second)
    assert_whole(kept, first)


async def test_a_silent_redis_is_given_up_at_the_deadline(keys: Keys) -> None:
    """And the connection is dropped: its reply may come later."""
    async with silent_server() as port:
        store = BlockStore(f"redis://127.0.0.1:{port}", keys, FINGERPRINT, FORMAT)
        with pytest.raises(UnavailableError):
            store.fetch(chain(1), deadline_s=time.monotonic() + 0.05)
        store.close()


def test_a_redis_that_was_restarted_is_used_at_once(tmp_path: Path, keys: Keys) -> None:
    """The connection is stale; blocks are gone, which is a miss and not an error."""
    valkey = EmbeddedValkey(tmp_path)
    valkey.start()
    store = BlockStore(valkey.url, keys, FINGERPRINT, FORMAT)
    names = chain(2)
    put(store, names)
    valkey.stop()
    with pytest.raises(UnavailableError):
        fetch(store, names)
    valkey.start()
    assert fetch(store, names).missing == names[0].hash
    valkey.stop()
    valkey.start()
    assert put(store, names) == []
    store.close()
    valkey.stop()


def test_a_full_redis_refuses_and_stays_in_order(tmp_path: Path, keys: Keys) -> None:
    """Cases J2: every refused block is reported; reading goes on."""
    valkey = EmbeddedValkey(tmp_path)
    valkey.start()
    store = BlockStore(valkey.url, keys, FINGERPRINT, FORMAT)
    names = chain(3)
    put(store, names[:1])
    with Redis.from_url(valkey.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
    refusals = put(store, names[1:])
    assert [reply[:4] for reply in refusals] == [b"-OOM", b"-OOM"]
    assert_whole(fetch(store, names), names[:1])
    store.close()
    valkey.stop()


def test_a_password_works(tmp_path: Path, keys: Keys) -> None:
    """As in any URL that redis-py takes: it connects."""
    valkey = EmbeddedValkey(tmp_path)
    valkey.start()
    with Redis.from_url(valkey.url) as client:
        client.config_set("requirepass", "secret")
    url = valkey.url.replace("redis://", "redis://:secret@")
    store = BlockStore(url, keys, FINGERPRINT, FORMAT)
    names = chain(2)
    put(store, names)
    assert_whole(fetch(store, names), names)
    store.close()
    refused = BlockStore(valkey.url, keys, FINGERPRINT, FORMAT)
    with pytest.raises(UnavailableError):
        fetch(refused, names)
    refused.close()
    valkey.stop()
