"""The journal's scripts on a real Redis: each step, repeated, fenced, late, or lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from redis.asyncio import Redis

from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from headrace.schemas.keys import Keys
from headrace.schemas.request import DecodedRequest, Record, decode_request
from headrace.streams import lua
from headrace.streams.generation import Ending, Generation, JournalEntry, Start
from headrace.streams.journal import Claim, ClaimKind, ConfirmResult, FlushResult, Journal
from headrace.streams.redis_scripts import Call, Scripts, connect
from tests.fakes import ByteStream, DelayingProxy, silent_server

pytestmark = pytest.mark.integration

START = Start([1, 2, 3], -5, 2, 1, 1_796_000_000, "tiny", "fp-1")
STOP = Ending(finish_reason="stop")


@pytest.fixture
def keys(topic_prefix: str) -> Keys:
    """Keys of this test's own."""
    return Keys(topic_prefix)


@asynccontextmanager
async def closing(client: "Redis") -> AsyncIterator["Redis"]:
    """Close `client` at the end, whatever happens."""
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["Redis"]:
    """A client as a worker has it."""
    async with closing(connect(redis_url)) as client:
        yield client


@pytest.fixture
def scripts(client: "Redis", keys: Keys) -> Scripts:
    """Scripts on that client."""
    return Scripts(client, keys)


@pytest.fixture
def journal(scripts: Scripts, keys: Keys) -> Journal:
    """The journals of this test's pipeline."""
    return Journal(scripts, keys, ttl_s=60, worker_id="w1")


def decoded(
    *,
    request_id: str | None = "r1",
    offset: int = 5,
    session_id: str = "s1",
    timestamp_ms: int = 1_796_000_000_000,
) -> DecodedRequest:
    """A record that asks for an answer."""
    body: dict[str, Any] = {"prompt": "hi"}
    if request_id is not None:
        body["request_id"] = request_id
    value = orjson.dumps(body)
    key = session_id.encode()
    return decode_request(Record("requests", 3, offset, timestamp_ms, key, value, []))


def generation_of(claim: Claim, token: int, request: DecodedRequest | None = None) -> Generation:
    """What a worker makes of a claim."""
    entry = claim.entry
    assert entry is not None
    generation = Generation(request or decoded(), token=token, attempt=entry.attempt)
    generation.restore(entry, ByteStream())
    generation.start = generation.start or START
    return generation


async def claimed(
    journal: Journal, token: int, request: DecodedRequest | None = None
) -> Generation:
    """A generation whose journal was claimed under `token`."""
    claim = await journal.claim(request or decoded(), token=token, may_create=True)
    return generation_of(claim, token, request)


async def flush(journal: Journal, generation: Generation, text: str = "") -> FlushResult:
    """The engine made `text`; journal it."""
    generation.extend(list(text.encode()), text)
    pending = generation.next_flush()
    assert pending is not None
    (result,) = await journal.flush([(generation, pending)])
    if result in (FlushResult.OK, FlushResult.CANCELLED):
        generation.flushed(pending)
    return result


async def stored(
    journal: Journal, token: int, request: DecodedRequest | None = None
) -> JournalEntry:
    """What a later owner finds."""
    claim = await journal.claim(request or decoded(), token=token, may_create=False)
    assert claim.kind is ClaimKind.RESUMED
    assert claim.entry is not None
    return replace(claim.entry, runner="", num_ids_claimed=0)


async def fields(client: "Redis", keys: Keys, request_id: str = "r1") -> dict[bytes, bytes]:
    """The journal as it stands in Redis."""
    found: Any = await client.hgetall(keys.journal("default", request_id))
    return dict(found)


# own


async def test_own_grows_whatever_the_clock_says(journal: Journal) -> None:
    """A clock that goes back, and one that stands still."""
    tokens = [(await journal.own([7], clock))[0] for clock in (1000, 1000, 400, 2000, 1999)]
    assert tokens == [1000, 1001, 1002, 2000, 2001]


async def test_own_takes_each_partition_for_itself(journal: Journal) -> None:
    """One round trip for all partitions of an assignment."""
    await journal.own([1], 5000)
    assert await journal.own([1, 2, 2], 900) == [5001, 900, 901]


async def test_own_goes_on_from_the_clock_when_redis_was_emptied(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """The clock is what grows then, and it is past every token that was taken from it."""
    (before,) = await journal.own([7], int(time.time() * 1000))
    await client.delete(keys.fence(7))
    (after,) = await journal.own([7], int(time.time() * 1000) + 1)
    assert after > before


async def test_tokens_are_exact_integers(journal: Journal, client: "Redis", keys: Keys) -> None:
    """Lua's numbers are doubles: no exponent, no lost digit, today and in a thousand years."""
    for clock in (1_796_000_000_123, 33_000_000_000_001):
        assert [clock] == await journal.own([7], clock)
        assert str(clock).encode() == await client.get(keys.fence(7))
        assert [clock + 1] == await journal.own([7], 0)


# claim


async def test_the_first_claim_creates_a_journal(journal: Journal) -> None:
    """Its attempt is the token of that claim."""
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert Claim(ClaimKind.CREATED, JournalEntry(attempt=100)) == claim


async def test_without_the_lease_no_journal_is_made(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """A zombie must not start an attempt."""
    claim = await journal.claim(decoded(), token=100, may_create=False)
    assert Claim(ClaimKind.ABSENT) == claim
    assert await fields(client, keys) == {}


async def test_a_later_owner_resumes_under_the_same_attempt(journal: Journal) -> None:
    """It gets everything that was journaled: ids, chunks, start, what was confirmed."""
    generation = await claimed(journal, 100)
    assert await flush(journal, generation, "ab") is FlushResult.OK
    generation.acknowledged = 1
    assert await flush(journal, generation, "c") is FlushResult.OK
    expected = JournalEntry(100, START, list(b"abc"), [2, 3], confirmed=1)
    assert expected == await stored(journal, 200)


async def test_the_same_owner_may_claim_again(journal: Journal) -> None:
    """An answer that was lost: the claim is repeated under the same token."""
    await journal.claim(decoded(), token=100, may_create=True)
    again = await journal.claim(decoded(), token=100, may_create=True)
    assert Claim(ClaimKind.RESUMED, JournalEntry(attempt=100, runner="w1")) == again


async def test_a_journal_in_which_nothing_began_is_taken_over_under_a_larger_attempt(
    journal: Journal,
) -> None:
    """Its owner may not have had the claim's answer, and have gone on without a journal.

    That was under a larger token: the next owner kept the old attempt, and readers ignored it.
    """
    await journal.claim(decoded(), token=100, may_create=True)
    assert JournalEntry(attempt=200) == await stored(journal, 200)


async def test_a_delivered_journal_keeps_its_attempt(journal: Journal) -> None:
    """Its start is gone, and nothing begins any more."""
    generation = await claimed(journal, 100)
    generation.end(STOP)
    await flush(journal, generation, "ab")
    await journal.confirm(generation)
    assert JournalEntry(attempt=100, done=True) == await stored(journal, 200)


async def test_a_refused_journal_keeps_its_attempt(journal: Journal) -> None:
    """It has an ending and no start; its last event may have been published."""
    generation = Generation(decoded(), token=100, attempt=100)
    await journal.claim(decoded(), token=100, may_create=True)
    generation.end(STOP)
    await flush(journal, generation)
    assert (await stored(journal, 200)).attempt == 100


async def test_ids_without_their_start_are_not_gone_on_from(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """What another seed would add to them is another text: as if the journal were lost."""
    generation = await claimed(journal, 100)
    await flush(journal, generation, "ab")
    await client.hdel(keys.journal("default", "r1"), "start", "prompt")
    claim = await journal.claim(decoded(), token=200, may_create=True)
    assert claim.kind is ClaimKind.UNREADABLE


async def test_a_smaller_token_is_fenced(journal: Journal) -> None:
    """An owner of before: nothing of the journal changes."""
    await journal.claim(decoded(), token=200, may_create=True)
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert Claim(ClaimKind.FENCED) == claim
    assert (await stored(journal, 200)).attempt == 200


async def test_a_second_record_with_the_same_id_is_a_duplicate(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Whatever its token; the first record's journal is not touched."""
    await claimed(journal, 100)
    before = await fields(client, keys)
    for token in (50, 100, 900):
        claim = await journal.claim(decoded(offset=6), token=token, may_create=True)
        assert Claim(ClaimKind.DUPLICATE) == claim
    assert before == await fields(client, keys)


async def test_a_default_id_of_another_topic_life_is_taken_anew(journal: Journal) -> None:
    """A topic that was made again counts from 0: same id, another record, nothing is resumed."""
    old = decoded(request_id=None, timestamp_ms=1)
    generation = await claimed(journal, 100, old)
    await flush(journal, generation, "old")
    new = decoded(request_id=None, timestamp_ms=2)
    claim = await journal.claim(new, token=200, may_create=True)
    assert Claim(ClaimKind.CREATED, JournalEntry(attempt=200)) == claim


async def test_the_old_owner_of_a_default_id_is_fenced_when_it_is_taken_anew(
    journal: Journal,
) -> None:
    """What it still flushes does not land in the new record's journal."""
    old = decoded(request_id=None, timestamp_ms=1)
    generation = await claimed(journal, 100, old)
    new = decoded(request_id=None, timestamp_ms=2)
    await journal.claim(new, token=200, may_create=True)
    assert await flush(journal, generation, "old") is FlushResult.FENCED


# cancel


async def test_an_early_cancel_is_found_by_the_claim(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Cases B3: it waits for its request, and only once."""
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert Claim(ClaimKind.CREATED, JournalEntry(attempt=100, cancelled=True)) == claim
    assert await client.exists(keys.cancel("default", "r1")) == 0


async def test_an_early_cancel_of_another_session_has_no_effect(journal: Journal) -> None:
    """The id is not enough: who names another session gets nothing."""
    await journal.cancel(tenant="default", request_id="r1", session_id="other")
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert Claim(ClaimKind.CREATED, JournalEntry(attempt=100)) == claim


async def test_an_early_cancel_of_another_tenant_has_no_effect(journal: Journal) -> None:
    """Two tenants may use the same ids."""
    await journal.cancel(tenant="other", request_id="r1", session_id="s1")
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert Claim(ClaimKind.CREATED, JournalEntry(attempt=100)) == claim


async def test_a_foreign_cancel_does_not_hide_the_right_one(journal: Journal) -> None:
    """Another session's early cancel for this id stands there when the owner's session cancels."""
    await journal.cancel(tenant="default", request_id="r1", session_id="other")
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert claim.entry is not None
    assert claim.entry.cancelled


async def test_a_foreign_cancel_does_not_overwrite_the_right_one(journal: Journal) -> None:
    """Another session names this id after its own session did: that one still holds."""
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    await journal.cancel(tenant="default", request_id="r1", session_id="other")
    claim = await journal.claim(decoded(), token=100, may_create=True)
    assert claim.entry is not None
    assert claim.entry.cancelled


async def test_the_owner_sees_a_cancel_at_its_next_flush(journal: Journal) -> None:
    """Whoever read the control record; what was flushed is written all the same."""
    generation = await claimed(journal, 100)
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    assert await flush(journal, generation, "ab") is FlushResult.CANCELLED
    assert await journal.cancelled([generation]) == [True]
    entry = await stored(journal, 200)
    assert (list(b"ab"), True) == (entry.ids, entry.cancelled)


@pytest.mark.parametrize("session", ["other", ""])
async def test_a_cancel_that_names_another_session_has_no_effect(
    journal: Journal, session: str
) -> None:
    """Also while the request is running."""
    generation = await claimed(journal, 100)
    await journal.cancel(tenant="default", request_id="r1", session_id=session)
    assert await flush(journal, generation, "ab") is FlushResult.OK
    assert await journal.cancelled([generation]) == [False]


async def test_a_cancel_after_the_end_has_no_effect(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Neither between the last flush and confirm nor afterwards."""
    generation = await claimed(journal, 100)
    generation.end(STOP)
    await flush(journal, generation, "ab")
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    assert b"cancel" not in await fields(client, keys)
    generation.acknowledged = 1
    await journal.confirm(generation)
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    assert b"cancel" not in await fields(client, keys)
    assert await client.exists(keys.cancel("default", "r1")) == 0


async def test_a_cancel_is_not_asked_by_who_lost_the_journal(journal: Journal) -> None:
    """The new owner ends it."""
    generation = await claimed(journal, 100)
    await claimed(journal, 200)
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    assert await journal.cancelled([generation]) == [False]


async def test_adopting_finds_a_cancel_that_came_while_there_was_no_journal(
    journal: Journal,
) -> None:
    """An unjournaled or lost generation: its cancel waited as an early one."""
    generation = Generation(decoded(), token=100, attempt=100)
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    assert await journal.adopt(generation, generation.adopt(), may_create=True)
    assert await journal.cancelled([generation]) == [True]


async def test_adopting_keeps_a_cancel_that_stands_in_the_journal(journal: Journal) -> None:
    """The journal of an older owner is written over, its cancel is not."""
    await claimed(journal, 50)
    await journal.cancel(tenant="default", request_id="r1", session_id="s1")
    generation = Generation(decoded(), token=100, attempt=100)
    await journal.adopt(generation, generation.adopt(), may_create=False)
    assert await journal.cancelled([generation]) == [True]


# flush


async def test_a_flush_may_be_repeated_after_an_unknown_outcome(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """It was carried out, nobody heard of it, and meanwhile there is more."""
    generation = await claimed(journal, 100)
    await flush(journal, generation, "ab")
    generation.extend(list(b"cd"), "cd")
    lost = generation.next_flush()
    assert lost is not None
    await journal.flush([(generation, lost)])
    once = await fields(client, keys)
    await journal.flush([(generation, lost)])
    assert once == await fields(client, keys)
    generation.end(STOP)
    assert await flush(journal, generation, "e") is FlushResult.OK
    expected = JournalEntry(100, START, list(b"abcde"), [2, 5], ending=STOP)
    assert expected == await stored(journal, 200)


async def test_a_flush_under_a_smaller_token_is_refused(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Cases A11: a paused owner wakes up; nothing of its write lands."""
    zombie = await claimed(journal, 100)
    await flush(journal, zombie, "ab")
    await claimed(journal, 200)
    before = await fields(client, keys)
    assert await flush(journal, zombie, "cd") is FlushResult.FENCED
    assert before == await fields(client, keys)


async def test_a_flush_without_a_journal_says_so(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """And makes none: that takes the lease and a larger attempt."""
    generation = await claimed(journal, 100)
    await client.delete(keys.journal("default", "r1"))
    assert await flush(journal, generation, "ab") is FlushResult.ABSENT
    assert await fields(client, keys) == {}


async def test_a_journal_that_lost_its_tail_counts_as_lost(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """A failover to a replica that was behind: appending there would leave a hole in the ids."""
    generation = await claimed(journal, 100)
    await flush(journal, generation, "ab")
    behind = await fields(client, keys)
    await flush(journal, generation, "cd")
    await put(client, keys, behind)
    assert await flush(journal, generation, "ef") is FlushResult.ABSENT


async def test_a_journal_that_lost_its_start_counts_as_lost(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """A replica that was behind: it had the claim, and not what was adopted after it."""
    generation = await claimed(journal, 100)
    behind = await fields(client, keys)
    entry = generation.adopt()
    assert await journal.adopt(generation, entry, may_create=True) is FlushResult.OK
    generation.adopted(entry)
    await put(client, keys, behind)
    assert await flush(journal, generation, "ab") is FlushResult.ABSENT
    assert behind == await fields(client, keys)


async def test_a_journal_that_went_back_to_an_earlier_attempt_counts_as_lost(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """A replica that was behind: who went on from there would be ignored by readers."""
    generation = await claimed(journal, 100)
    await flush(journal, generation, "ab")
    behind = await fields(client, keys)
    entry = generation.restart(200)
    assert await journal.adopt(generation, entry, may_create=True) is FlushResult.OK
    generation.adopted(entry)
    await put(client, keys, behind)
    assert await flush(journal, generation, "cd") is FlushResult.ABSENT


async def put(client: "Redis", keys: Keys, old: dict[bytes, bytes]) -> None:
    """The journal is again what it was."""
    key = keys.journal("default", "r1")
    await client.delete(key)
    for name, value in old.items():
        await client.hset(key, name, value)


async def test_a_flush_into_another_records_journal_is_refused(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Redis was emptied, and a second record with this id made its journal under the same token."""
    first = await claimed(journal, 100)
    await flush(journal, first, "ab")
    await client.delete(keys.journal("default", "r1"))
    second = await claimed(journal, 100, decoded(offset=6))
    assert await flush(journal, first, "cd") is not FlushResult.OK
    assert await flush(journal, second, "xy") is FlushResult.OK


async def test_a_flush_that_arrives_late_changes_nothing(
    redis_url: str, keys: Keys, client: "Redis", journal: Journal
) -> None:
    """It was given up after half a second, and reaches Redis after the one that replaced it."""
    async with (
        DelayingProxy(*_address(redis_url)).listening() as proxy,
        closing(connect(f"redis://127.0.0.1:{proxy.port}/0")) as slow,
    ):
        through_proxy = Journal(Scripts(slow, keys), keys, ttl_s=60, worker_id="w1")
        generation = await claimed(through_proxy, 100)
        await flush(through_proxy, generation, "a")
        late = proxy.hold_requests()
        assert await flush(through_proxy, generation, "b") is FlushResult.AWAY
        proxy.pass_requests()
        generation.end(STOP)
        assert await flush(through_proxy, generation, "c") is FlushResult.OK
        before = await fields(client, keys)
        num_calls = await num_scripts_run(client)
        late.set()
        while await num_scripts_run(client) == num_calls:  # noqa: ASYNC110 - Redis has no event
            await asyncio.sleep(0.01)
        assert before == await fields(client, keys)


async def test_an_adopt_that_arrives_late_changes_nothing(
    redis_url: str, keys: Keys, client: "Redis"
) -> None:
    """As with a flush: the journal that was published from must not go back."""
    async with (
        DelayingProxy(*_address(redis_url)).listening() as proxy,
        closing(connect(f"redis://127.0.0.1:{proxy.port}/0")) as slow,
    ):
        through_proxy = Journal(Scripts(slow, keys), keys, ttl_s=60, worker_id="w1")
        generation = await claimed(through_proxy, 100)
        await client.delete(keys.journal("default", "r1"))
        generation.extend(list(b"ab"), "ab")
        late = proxy.hold_requests()
        entry = generation.restart(200)
        assert await through_proxy.adopt(generation, entry, may_create=True) is FlushResult.AWAY
        proxy.pass_requests()
        generation.extend(list(b"cd"), "cd")
        entry = generation.restart(200)
        assert await through_proxy.adopt(generation, entry, may_create=True) is FlushResult.OK
        generation.adopted(entry)
        assert await flush(through_proxy, generation, "ef") is FlushResult.OK
        before = await fields(client, keys)
        num_calls = await num_scripts_run(client)
        late.set()
        while await num_scripts_run(client) == num_calls:  # noqa: ASYNC110 - Redis has no event
            await asyncio.sleep(0.01)
        assert before == await fields(client, keys)


@pytest.mark.parametrize("refused", [False, True])
async def test_an_adopt_from_before_the_start_arrives_late_and_changes_nothing(
    journal: Journal, client: "Redis", keys: Keys, refused: bool
) -> None:
    """It has no ids, as the one that replaced it: only start or ending tell which came first.

    It took the start away, and the next owner drew another seed for the same attempt.
    """
    generation = Generation(decoded(), token=100, attempt=100)
    early = generation.adopt()
    if refused:
        generation.end(Ending(error=RequestError(ErrorCode.EXPIRED, "late", "ttl_ms")))
    else:
        generation.begin(START)
    entry = generation.adopt()
    assert await journal.adopt(generation, entry, may_create=True) is FlushResult.OK
    before = await fields(client, keys)
    assert await journal.adopt(generation, early, may_create=True) is FlushResult.FENCED
    assert before == await fields(client, keys)


async def num_scripts_run(client: "Redis") -> int:
    """How many scripts Redis has run."""
    found = await client.info("commandstats")
    return int(found.get("cmdstat_evalsha", {}).get("calls", 0))


async def test_one_refused_flush_does_not_touch_the_others(journal: Journal) -> None:
    """One round trip for all generations, one answer for each."""
    requests = [decoded(request_id=f"r{n}", offset=n) for n in range(3)]
    generations = [await claimed(journal, 100, one) for one in requests]
    await claimed(journal, 200, requests[1])
    batch = []
    for generation in generations:
        generation.extend([97], "a")
        pending = generation.next_flush()
        assert pending is not None
        batch.append((generation, pending))
    expected = [FlushResult.OK, FlushResult.FENCED, FlushResult.OK]
    assert expected == await journal.flush(batch)


async def test_a_key_of_a_wrong_type_is_not_known_to_be_written(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Redis refuses: the text is held back, nothing raises."""
    generation = await claimed(journal, 100)
    await client.set(keys.journal("default", "r1"), "nonsense")
    assert await flush(journal, generation, "ab") is FlushResult.AWAY


# adopt


@pytest.mark.parametrize(
    ("standing_token", "may_create", "expected"),
    [
        (None, True, FlushResult.OK),
        (None, False, FlushResult.ABSENT),
        (50, False, FlushResult.OK),
        (100, False, FlushResult.OK),
        (101, True, FlushResult.FENCED),
    ],
)
async def test_adopt_writes_the_whole_journal_unless_a_larger_token_stands_there(
    journal: Journal, standing_token: int | None, may_create: bool, expected: FlushResult
) -> None:
    """With no journal there, only under the lease."""
    if standing_token is not None:
        older = await claimed(journal, standing_token)
        await flush(journal, older, "x")
    generation = Generation(decoded(), token=100, attempt=100)
    generation.start = START
    generation.extend(list(b"ab"), "ab")
    pending = generation.next_flush()
    assert pending is not None
    generation.flushed(pending)
    entry = generation.adopt()
    assert expected is await journal.adopt(generation, entry, may_create=may_create)
    if expected is FlushResult.OK:
        assert entry == await stored(journal, 200)


# confirm


async def test_confirm_leaves_what_tells_a_redelivery_apart(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """Cases A9: small, and enough for any later owner to know that nothing is to be done."""
    generation = await claimed(journal, 100)
    generation.end(STOP)
    await flush(journal, generation, "ab" * 500)
    generation.acknowledged = 1
    assert await journal.confirm(generation) is ConfirmResult.OK
    left = await fields(client, keys)
    assert {b"token", b"attempt", b"source", b"session", b"confirmed", b"done"} == set(left)
    assert sum(map(len, left.values())) < 200
    assert await client.pttl(keys.journal("default", "r1")) > 50_000
    assert (await stored(journal, 200)).done
    duplicate = await journal.claim(decoded(offset=6), token=300, may_create=True)
    assert Claim(ClaimKind.DUPLICATE) == duplicate


async def test_confirm_may_be_repeated(journal: Journal) -> None:
    """Its answer may be lost."""
    generation = await claimed(journal, 100)
    generation.end(STOP)
    await flush(journal, generation, "ab")
    assert await journal.confirm(generation) is ConfirmResult.OK
    assert await journal.confirm(generation) is ConfirmResult.OK


async def test_confirm_tells_absent_fenced_and_older(
    journal: Journal, client: "Redis", keys: Keys
) -> None:
    """None of them ends anything."""
    generation = await claimed(journal, 100)
    generation.end(STOP)
    await flush(journal, generation, "ab")
    await claimed(journal, 200)
    assert await journal.confirm(generation) is ConfirmResult.FENCED
    generation.token = 300
    assert await journal.confirm(generation) is ConfirmResult.OLDER
    assert not (await stored(journal, 200)).done
    await client.delete(keys.journal("default", "r1"))
    assert await journal.confirm(generation) is ConfirmResult.ABSENT
    assert await fields(client, keys) == {}


async def test_everything_has_a_time_to_live(journal: Journal, client: "Redis", keys: Keys) -> None:
    """No journal and no early cancel stays for ever."""
    generation = await claimed(journal, 100)
    key = keys.journal("default", "r1")
    assert 0 < await client.pttl(key) <= 60_000
    await client.pexpire(key, 1000)
    await flush(journal, generation, "ab")
    assert await client.pttl(key) > 50_000
    await journal.cancel(tenant="default", request_id="r9", session_id="s1")
    assert 0 < await client.pttl(keys.cancel("default", "r9")) <= 3_600_000


# Redis slow, silent, away


async def test_a_silent_redis_costs_half_a_second_and_raises(keys: Keys) -> None:
    """Cases J7: it accepts and never answers."""
    async with (
        silent_server() as port,
        closing(connect(f"redis://127.0.0.1:{port}/0")) as client,
    ):
        scripts = Scripts(client, keys)
        journal = Journal(scripts, keys, ttl_s=60, worker_id="w1")
        began_s = time.monotonic()
        with pytest.raises(UnavailableError):
            await journal.claim(decoded(), token=1, may_create=True)
        assert time.monotonic() - began_s < 0.8
        assert not scripts.available.is_set()
        began_s = time.monotonic()
        generation = Generation(decoded(), token=1, attempt=1)
        assert await flush(journal, generation, "a") is FlushResult.AWAY
        assert time.monotonic() - began_s < 0.8


async def test_a_refused_connection_raises_at_once(keys: Keys) -> None:
    """Nobody listens: no wait."""
    async with silent_server() as port:
        pass
    async with closing(connect(f"redis://127.0.0.1:{port}/0")) as client:
        with pytest.raises(UnavailableError):
            await Scripts(client, keys).run_one(Call(lua.OWN, [keys.fence(1)], [1]))


async def test_watch_brings_available_back(redis_url: str, keys: Keys) -> None:
    """Once a write is answered again, and not before."""
    async with (
        DelayingProxy(*_address(redis_url)).listening() as proxy,
        closing(connect(f"redis://127.0.0.1:{proxy.port}/0")) as client,
    ):
        scripts = Scripts(client, keys)
        call = Call(lua.OWN, [keys.fence(1)], [1])
        await scripts.run_one(call)
        held = proxy.hold_requests()
        with pytest.raises(UnavailableError):
            await scripts.run_one(call)
        watching = asyncio.create_task(scripts.watch())
        num_seen = proxy.num_requests
        await proxy.changes.until(lambda: proxy.num_requests > num_seen)
        assert not scripts.available.is_set()
        proxy.pass_requests()
        held.set()
        async with asyncio.timeout(3):
            await scripts.available.wait()
        assert await scripts.run_one(call) > 1
        watching.cancel()


async def test_a_cancelled_call_never_gives_its_reply_to_the_next_caller(
    redis_url: str, keys: Keys
) -> None:
    """Cases J1, with one connection: cancelled before, while, and after its answer is under way."""
    async with one_connection(redis_url) as (proxy, client):
        scripts = Scripts(client, keys)
        secret = Call("return ARGV[1]", [keys.probe], ["secret of s1"])
        mine = Call("return ARGV[1]", [keys.probe], ["mine"])
        await scripts.run_one(secret)
        await scripts.run_one(mine)
        for gate in ("requests", "replies"):
            setattr(proxy, gate, asyncio.Event())
            held = getattr(proxy, gate)
            call = asyncio.create_task(scripts.run([secret, secret]))
            await proxy.next_request()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            setattr(proxy, gate, asyncio.Event())
            getattr(proxy, gate).set()
            held.set()
            assert await scripts.run([mine, mine]) == [b"mine", b"mine"]


async def test_a_call_that_timed_out_never_gives_its_reply_to_the_next_caller(
    redis_url: str, keys: Keys
) -> None:
    """Cases J1 by our own deadline; the late answer comes while the next call waits for its own."""
    async with one_connection(redis_url) as (proxy, client):
        scripts = Scripts(client, keys)
        secret = Call("return ARGV[1]", [keys.probe], ["secret of s1"])
        mine = Call("return ARGV[1]", [keys.probe], ["mine"])
        await scripts.run([secret, mine])
        held = proxy.replies = asyncio.Event()
        with pytest.raises(UnavailableError):
            await scripts.run_one(secret)
        proxy.replies = asyncio.Event()
        proxy.replies.set()
        following = asyncio.create_task(scripts.run_one(mine))
        held.set()
        assert await following == b"mine"


def echo(keys: Keys, text: str) -> Call:
    """A call that answers with `text`."""
    return Call("return ARGV[1]", [keys.probe], [text])


async def test_calls_that_wait_share_the_next_round_trip_in_their_order(
    redis_url: str, keys: Keys
) -> None:
    """While one is under way, whatever is asked goes out as one; a lone connection is enough."""
    order = Call("return redis.call('INCR', KEYS[1])", [keys.fence(1)], [])
    async with one_connection(redis_url) as (proxy, client):
        scripts = Scripts(client, keys)
        await scripts.run([order, echo(keys, "a")])
        proxy.replies = asyncio.Event()
        first = asyncio.create_task(scripts.run_one(order))
        await proxy.next_request()
        num_sent = proxy.num_requests
        waiting = [asyncio.create_task(scripts.run([order, echo(keys, str(n))])) for n in range(5)]
        await asyncio.sleep(0)
        proxy.replies.set()
        assert await first == 2
        answers = [await task for task in waiting]
        assert [[3 + n, str(n).encode()] for n in range(5)] == answers
        assert proxy.num_requests == num_sent + 1


async def test_calls_of_others_survive_the_cancel_of_the_one_that_sends(
    redis_url: str, keys: Keys
) -> None:
    """Its connection is dropped; theirs are sent again, and answered."""
    async with one_connection(redis_url) as (proxy, client):
        scripts = Scripts(client, keys)
        await scripts.run_one(echo(keys, "a"))
        proxy.replies = asyncio.Event()
        first = asyncio.create_task(scripts.run_one(echo(keys, "first")))
        await proxy.next_request()
        second, third = (
            asyncio.create_task(scripts.run_one(echo(keys, name))) for name in ("second", "third")
        )
        await asyncio.sleep(0)
        first.cancel()
        proxy.replies.set()
        assert await second == b"second"
        assert await third == b"third"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_cancelled_call_that_was_not_sent_is_not_carried_out(
    redis_url: str, keys: Keys, client: "Redis"
) -> None:
    """Nobody waits for it any more."""
    add = Call("return redis.call('INCR', KEYS[1])", [keys.fence(1)], [])
    async with one_connection(redis_url) as (proxy, lone):
        scripts = Scripts(lone, keys)
        await scripts.run([add, echo(keys, "a")])
        proxy.replies = asyncio.Event()
        first = asyncio.create_task(scripts.run_one(echo(keys, "first")))
        await proxy.next_request()
        second = asyncio.create_task(scripts.run_one(add))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        proxy.replies.set()
        assert await first == b"first"
        assert await scripts.run_one(add) == 2


async def test_scripts_are_loaded_again_after_redis_forgot_them(
    scripts: Scripts, keys: Keys
) -> None:
    """A restart loses them; the call is carried out all the same."""
    unknown = f"return '{keys.prefix}'"  # no other test has loaded this one
    answers = await scripts.run([Call(unknown, [keys.probe], []), Call(unknown, [keys.probe], [])])
    assert [keys.prefix.encode()] * 2 == answers


@asynccontextmanager
async def one_connection(redis_url: str) -> AsyncIterator[tuple[DelayingProxy, "Redis"]]:
    """A client that has one connection only, through a proxy."""
    async with DelayingProxy(*_address(redis_url)).listening() as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with closing(Redis.from_url(url, max_connections=1)) as client:
            yield proxy, client


def _address(redis_url: str) -> tuple[str, int]:
    parts = urlsplit(redis_url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
