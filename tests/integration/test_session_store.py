"""Stored conversations on a real Redis: once per turn, in order, never by an owner of before."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from headrace.schemas.keys import Keys
from headrace.schemas.request import Record, decode_request
from headrace.streams.generation import Generation
from headrace.streams.redis_scripts import Scripts, connect
from headrace.streams.session_store import SessionRecord, SessionStore

pytestmark = pytest.mark.integration


@pytest.fixture
def keys(topic_prefix: str) -> Keys:
    """Keys of this test's own."""
    return Keys(topic_prefix)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["Redis"]:
    """A client as a worker has it."""
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def sessions(client: "Redis", keys: Keys) -> SessionStore:
    """The conversations of this test's pipeline."""
    return SessionStore(Scripts(client, keys), keys, ttl_s=60)


def turn(
    request_id: str,
    *,
    token: int = 100,
    partition: int = 3,
    session: str = "s1",
    offset: int = 5,
    timestamp_ms: int = 1,
) -> Generation:
    """A generation of one turn."""
    body: dict[str, Any] = {"request_id": request_id, "prompt": "hi"}
    value = orjson.dumps(body)
    record = Record("requests", partition, offset, timestamp_ms, session.encode(), value, [])
    return Generation(decode_request(record), token=token, attempt=token)


def conversation(*texts: str, turns: int | None = None) -> SessionRecord:
    """A conversation of questions and answers."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    ids = [len(text) for text in texts]
    return SessionRecord(
        turns=len(texts) // 2 if turns is None else turns, messages=messages, ids=ids
    )


async def store(
    sessions: SessionStore, generation: Generation, record: SessionRecord, *, read_version: int
) -> str:
    """Store under the generation's own token."""
    return await sessions.store(
        generation, record, read_version=read_version, token=generation.token
    )


async def test_an_unknown_session_is_empty(sessions: SessionStore) -> None:
    """And does not exist."""
    record = await sessions.load("default", "s1")
    assert SessionRecord() == record
    assert not record.exists


async def test_a_conversation_is_read_as_it_was_stored(sessions: SessionStore) -> None:
    """Ids as they were generated, any text, and a version that counts changes."""
    stored = conversation("héllo 😀", '"\x00\n')
    assert await store(sessions, turn("r1"), stored, read_version=0) == "ok"
    expected = SessionRecord(1, stored.turns, stored.messages, stored.ids)
    assert expected == await sessions.load("default", "s1")


async def test_tenants_do_not_share_a_session(sessions: SessionStore) -> None:
    """The same id of another tenant is another conversation."""
    await store(sessions, turn("r1"), conversation("a", "b"), read_version=0)
    assert SessionRecord() == await sessions.load("other", "s1")


async def test_a_turn_is_stored_once(sessions: SessionStore) -> None:
    """By request id: the next owner finds it stored, and changes nothing."""
    await store(sessions, turn("r1"), conversation("a", "b"), read_version=0)
    again = await store(
        sessions, turn("r1", token=200), conversation("a", "b", "a", "b"), read_version=1
    )
    assert again == "stored before"
    assert (await sessions.load("default", "s1")).turns == 1


async def test_a_turn_of_a_deleted_session_is_not_stored(sessions: SessionStore) -> None:
    """It was put behind what is gone: a deletion in mid-turn wins."""
    await store(sessions, turn("r1"), conversation("a", "b"), read_version=0)
    await sessions.delete("default", "s1")
    late = await store(sessions, turn("r2"), conversation("a", "b", "c", "d"), read_version=1)
    assert late == "changed"
    record = await sessions.load("default", "s1")
    assert (record.exists, record.version) == (False, 2)
    assert await store(sessions, turn("r3"), conversation("e", "f"), read_version=2) == "ok"


async def test_deleting_a_session_that_never_was_stops_its_first_turn(
    sessions: SessionStore,
) -> None:
    """The first turn runs, its session is deleted: nothing may be stored afterwards."""
    await sessions.delete("default", "s1")
    assert await store(sessions, turn("r1"), conversation("a", "b"), read_version=0) == "changed"


async def test_an_owner_of_before_cannot_overwrite_newer_state(sessions: SessionStore) -> None:
    """Cases A11: it wakes up after two more turns."""
    zombie = turn("r1", token=100)
    await store(sessions, turn("r1", token=200), conversation("a", "b"), read_version=0)
    await store(sessions, turn("r2", token=200), conversation("a", "b", "c", "d"), read_version=1)
    for version in (0, 1, 2):
        answer = await store(sessions, zombie, conversation("old", "old"), read_version=version)
        assert answer in ("fenced", "changed")
    assert (await sessions.load("default", "s1")).turns == 2


async def test_tokens_of_two_partitions_are_not_compared(sessions: SessionStore) -> None:
    """A keyless request made the session; its next turn has the id as key, so another partition."""
    await store(
        sessions, turn("r1", token=900, partition=1), conversation("a", "b"), read_version=0
    )
    following = turn("r2", token=100, partition=2)
    assert (
        await store(sessions, following, conversation("a", "b", "c", "d"), read_version=1) == "ok"
    )


async def test_a_session_is_kept_alive_by_reading(
    sessions: SessionStore, client: "Redis", keys: Keys
) -> None:
    """Its time to live counts from the last turn, and a deletion does not stay for ever."""
    await store(sessions, turn("r1"), conversation("a", "b"), read_version=0)
    key = keys.session("default", "s1")
    await client.pexpire(key, 1000)
    await sessions.load("default", "s1")
    assert await client.pttl(key) > 50_000
    await sessions.delete("default", "s1")
    assert 0 < await client.pttl(key) <= 60_000


async def test_a_tombstone_read_again_leaves_the_turns_behind_it(sessions: SessionStore) -> None:
    """After a crash the records since the last commit are read again, the tombstone among them."""
    tombstone = Record("requests", 3, 6, 20, b"s1", None, [])
    await store(
        sessions, turn("r1", offset=5, timestamp_ms=10), conversation("a", "b"), read_version=0
    )
    await sessions.delete("default", "s1", tombstone=tombstone)
    await sessions.delete("default", "s1", tombstone=tombstone)
    assert (await sessions.load("default", "s1")).version == 2
    after = turn("r2", offset=7, timestamp_ms=30)
    assert await store(sessions, after, conversation("c", "d"), read_version=2) == "ok"
    await sessions.delete("default", "s1", tombstone=tombstone)
    assert (await sessions.load("default", "s1")).turns == 1
    later = Record("requests", 3, 0, 40, b"s1", None, [])  # of a topic that was made anew
    await sessions.delete("default", "s1", tombstone=later)
    assert not (await sessions.load("default", "s1")).exists
