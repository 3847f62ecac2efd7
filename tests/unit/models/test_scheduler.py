"""What the scheduler puts into a step, in which order it admits, and whose blocks it takes."""

import pytest

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.block_pool import BlockPool
from headrace.models.prefix import block_hashes, root_hash
from headrace.models.request import EngineError, EngineErrorCode, KVBlock
from headrace.models.scheduler import Chunk, Scheduler, StepPlan
from headrace.models.sequence import TokenSequence

SALT = b"salt"
Rows = Scheduler[TokenSequence]


def make_scheduler(
    *, max_batch_size: int = 4, max_batch_tokens: int = 8, num_blocks: int = 10
) -> Rows:
    return Scheduler(
        BlockPool(num_blocks), max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens
    )


def sequence(
    key: str,
    num_prompt: int,
    *,
    max_tokens: int = 10,
    priority: int = 0,
    first_id: int = 0,
    runs_alone: bool = False,
) -> TokenSequence:
    """Equal first ids make equal prefixes."""
    return TokenSequence(
        key,
        list(range(first_id, first_id + num_prompt)),
        max_total_tokens=num_prompt + max_tokens,
        priority=priority,
        root_hash=root_hash(SALT),
        runs_alone=runs_alone,
    )


def step(scheduler: Rows) -> StepPlan[TokenSequence]:
    """Plan a step and play the runner: all of it is computed, rows that can get a token."""
    plan = scheduler.plan()
    scheduler.check_integrity()
    for chunk in plan.chunks:
        scheduler.commit(chunk)
        if chunk.needs_logits:
            chunk.generation.token_ids.append(7)
    scheduler.check_integrity()
    return plan


def shown(chunks: list[Chunk[TokenSequence]]) -> list[tuple[str, int, bool]]:
    return [(chunk.generation.key, chunk.num_tokens, chunk.needs_logits) for chunk in chunks]


def stepped(scheduler: Rows) -> list[tuple[str, int, bool]]:
    return shown(step(scheduler).chunks)


def test_decoding_rows_come_first_and_prefill_gets_the_rest() -> None:
    """A long prompt is cut to what the decoding rows leave of the token budget."""
    scheduler = make_scheduler()
    scheduler.add(sequence("decoding", 6))
    step(scheduler)
    scheduler.add(sequence("prompt", 12, first_id=100))
    assert stepped(scheduler) == [("decoding", 1, True), ("prompt", 7, False)]
    assert stepped(scheduler) == [("decoding", 1, True), ("prompt", 5, True)]


def test_two_prompts_share_a_step() -> None:
    """What is left of the budget goes to the next prompt; the last chunk gets logits."""
    scheduler = make_scheduler()
    scheduler.add(sequence("a", 5))
    scheduler.add(sequence("b", 9, first_id=100))
    assert stepped(scheduler) == [("a", 5, True), ("b", 3, False)]


def test_short_prompts_pass_a_long_one() -> None:
    """The oldest keeps half of the budget, the shortest get the rest."""
    scheduler = make_scheduler(num_blocks=400)
    scheduler.add(sequence("long", 4000))
    assert stepped(scheduler) == [("long", 8, False)]
    scheduler.add(sequence("longer", 5000, first_id=10_000))
    scheduler.add(sequence("short", 7, first_id=20_000))
    assert stepped(scheduler) == [("short", 4, False), ("long", 4, False)]
    assert stepped(scheduler) == [("short", 3, True), ("long", 5, False)]


def test_a_long_prompt_leaves_every_decoding_row_its_token() -> None:
    """In each step that it takes."""
    scheduler = make_scheduler(num_blocks=200)
    for key in ("a", "b", "c"):
        scheduler.add(sequence(key, 2, max_tokens=900))
    step(scheduler)
    scheduler.add(sequence("long", 3000, first_id=100))
    for _ in range(500):
        chunks = stepped(scheduler)
        assert chunks == [("a", 1, True), ("b", 1, True), ("c", 1, True), ("long", 5, False)]


def test_a_higher_priority_prefills_first() -> None:
    """Also if it is longer and came later."""
    scheduler = make_scheduler()
    scheduler.add(sequence("low", 9))
    scheduler.add(sequence("high", 30, priority=1, first_id=100))
    assert stepped(scheduler) == [("high", 8, False)]


def test_admission_is_by_priority_then_arrival() -> None:
    """And never beyond the batch size."""
    scheduler = make_scheduler(max_batch_size=2)
    for key, priority in (("a", 0), ("b", 0), ("c", 3)):
        scheduler.add(sequence(key, 1, priority=priority))
    assert [key for key, _, _ in stepped(scheduler)] == ["c", "a"]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_what_was_begun_elsewhere_is_admitted_first() -> None:
    """Somebody reads it already: it waited for a whole answer of those that came before."""
    scheduler = make_scheduler(max_batch_size=1)
    scheduler.add(sequence("new", 1, priority=3))
    begun = sequence("begun", 1, first_id=100)
    begun.token_ids.append(7)
    scheduler.add(begun)
    assert [key for key, _, _ in stepped(scheduler)] == ["begun"]


def test_a_row_that_runs_alone_has_the_steps_to_itself() -> None:
    """It passes all others until it has its first token; they keep their blocks."""
    scheduler = make_scheduler()
    scheduler.add(sequence("running", 6))
    step(scheduler)
    scheduler.add(sequence("waiting", 3, first_id=100))
    suspect = sequence("suspect", 12, first_id=200, runs_alone=True)
    scheduler.add(suspect)
    assert stepped(scheduler) == [("suspect", 8, False)]
    assert stepped(scheduler) == [("suspect", 4, True)]
    suspect.runs_alone = False
    assert stepped(scheduler) == [("running", 1, True), ("suspect", 1, True), ("waiting", 3, True)]
    assert scheduler.num_preemptions == 0


def test_a_row_that_runs_alone_takes_the_blocks_and_the_place_that_it_needs() -> None:
    """Whatever runs gives way, the row of the lowest rank first."""
    scheduler = make_scheduler(max_batch_size=2, max_batch_tokens=200, num_blocks=4)
    for number in range(2):
        scheduler.add(sequence(f"r{number}", 2, first_id=100 * number))
    step(scheduler)
    scheduler.add(sequence("suspect", 3 * BLOCK_TOKENS, first_id=300, runs_alone=True))
    assert stepped(scheduler) == [("suspect", 3 * BLOCK_TOKENS, True)]
    assert scheduler.num_preemptions == 2


def test_a_large_request_is_not_overtaken() -> None:
    """While the pool has no room for the first in the queue, the ones behind it wait too."""
    scheduler = make_scheduler(num_blocks=3, max_batch_tokens=100)
    scheduler.add(sequence("running", 40))
    step(scheduler)
    scheduler.add(sequence("large", 40, first_id=100))
    scheduler.add(sequence("small", 1, first_id=200))
    assert stepped(scheduler) == [("running", 1, True)]
    scheduler.remove("running")
    assert [key for key, _, _ in stepped(scheduler)] == ["large"]  # and one spare block for it
    scheduler.remove("large")
    assert [key for key, _, _ in stepped(scheduler)] == ["small"]


def test_what_can_never_fit_is_refused() -> None:
    """It would block the queue for ever. The last token is never computed, so it needs no room."""
    scheduler = make_scheduler(num_blocks=2)
    scheduler.add(sequence("fits", 2 * BLOCK_TOKENS, max_tokens=1))
    with pytest.raises(EngineError) as caught:
        scheduler.add(sequence("a", 2 * BLOCK_TOKENS, max_tokens=2))
    assert caught.value.code is EngineErrorCode.OUT_OF_MEMORY


@pytest.mark.parametrize(("size", "tokens"), [(0, 8), (9, 8)])
def test_impossible_limits_are_refused(size: int, tokens: int) -> None:
    """Each running row needs one token of the budget."""
    with pytest.raises(ValueError, match="max_batch_size"):
        make_scheduler(max_batch_size=size, max_batch_tokens=tokens)


def test_the_newest_row_gives_its_blocks_up() -> None:
    """When a decoding row finds no block; it computes its tokens again later, without the blocks
    that are still cached, and nobody that came after it is admitted before it.
    """
    scheduler = make_scheduler(num_blocks=4, max_batch_tokens=200)
    old, new = sequence("old", 63, max_tokens=60), sequence("new", 31, first_id=100, max_tokens=60)
    scheduler.add(old)
    scheduler.add(new)
    step(scheduler)
    scheduler.add(sequence("newest", 1, first_id=200))
    while not scheduler.num_preemptions:
        chunks = stepped(scheduler)
    assert chunks == [("old", 1, True)]
    assert (old.num_preemptions, new.num_preemptions) == (0, 1)
    assert new.num_computed == 0
    assert new.num_tokens > BLOCK_TOKENS
    num_known = new.num_tokens
    scheduler.remove("old")
    again = step(scheduler).chunks
    assert again[0].generation is new
    assert again[0].num_tokens == num_known - BLOCK_TOKENS
    assert new.cached_tokens == 0, "what it had computed itself is no hit"


def test_a_row_of_low_priority_is_preempted_though_it_is_older() -> None:
    """Priority counts before arrival."""
    scheduler = make_scheduler(num_blocks=3, max_batch_tokens=200)
    low = sequence("low", 20, max_tokens=60)
    high = sequence("high", 30, priority=1, first_id=100, max_tokens=60)
    scheduler.add(low)
    scheduler.add(high)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)


def test_a_cached_prefix_is_not_computed() -> None:
    """Whole blocks only, and at least one token is computed."""
    scheduler = make_scheduler(max_batch_tokens=200)
    scheduler.add(sequence("a", 2 * BLOCK_TOKENS))
    step(scheduler)
    same = sequence("same", 2 * BLOCK_TOKENS)
    longer = sequence("longer", 3 * BLOCK_TOKENS)
    scheduler.add(same)
    scheduler.add(longer)
    chunks = stepped(scheduler)
    assert chunks[1:] == [("same", BLOCK_TOKENS, True), ("longer", BLOCK_TOKENS, True)]
    assert (same.cached_tokens, longer.cached_tokens) == (BLOCK_TOKENS, 2 * BLOCK_TOKENS)
    counts = scheduler.prefix_cache
    assert (counts.queried, counts.local_hits, counts.fetched_hits) == (
        7 * BLOCK_TOKENS,
        3 * BLOCK_TOKENS,
        0,
    )


def test_a_cached_prefix_counts_when_room_is_looked_for() -> None:
    """Shared blocks need no free ones."""
    scheduler = make_scheduler(num_blocks=5, max_batch_tokens=200)
    scheduler.add(sequence("a", 3 * BLOCK_TOKENS + 1))
    step(scheduler)
    scheduler.add(sequence("other", 3 * BLOCK_TOKENS, first_id=500))
    assert stepped(scheduler) == [("a", 1, True)], "no room without a hit"
    scheduler.remove("other")
    scheduler.remove("a")
    scheduler.add(sequence("b", 3 * BLOCK_TOKENS + 2))
    assert stepped(scheduler) == [("b", 2, True)]


def test_a_prompt_takes_over_what_another_row_computes_meanwhile() -> None:
    """Of two equal prompts that are admitted together, the second computes little."""
    scheduler = make_scheduler(max_batch_tokens=BLOCK_TOKENS)
    a, b = sequence("a", 3 * BLOCK_TOKENS + 1), sequence("b", 3 * BLOCK_TOKENS + 1)
    scheduler.add(a)
    scheduler.add(b)
    num_steps = 0
    while b.num_tokens == b.num_prompt_tokens:
        step(scheduler)
        num_steps += 1
    assert num_steps <= 5
    assert (a.cached_tokens, b.cached_tokens) == (0, 3 * BLOCK_TOKENS)


def test_another_tenants_blocks_are_not_found() -> None:
    """Their names begin with another salt."""
    scheduler = make_scheduler(max_batch_tokens=200)
    scheduler.add(sequence("a", 70))
    step(scheduler)
    ids = list(range(70))
    other = TokenSequence("b", ids, max_total_tokens=80, root_hash=root_hash(b"other"))
    scheduler.add(other)
    step(scheduler)
    assert other.cached_tokens == 0


def test_blocks_of_a_row_that_failed_are_not_reused() -> None:
    """Nor those that it had from the cache: any of them may be the reason."""
    scheduler = make_scheduler(max_batch_tokens=200)
    scheduler.add(sequence("a", 70))
    step(scheduler)
    scheduler.add(sequence("bad", 100))
    step(scheduler)
    scheduler.remove("bad", failed=True)
    scheduler.check_integrity()
    scheduler.remove("a")
    after = sequence("after", 100)
    scheduler.add(after)
    step(scheduler)
    assert after.cached_tokens == 0


def fetched(key: str, num_prompt: int, blocks: list[KVBlock]) -> TokenSequence:
    return TokenSequence(
        key,
        list(range(num_prompt)),
        max_total_tokens=num_prompt + 10,
        root_hash=root_hash(SALT),
        kv_blocks=blocks,
    )


def kv_blocks(num_blocks: int) -> list[KVBlock]:
    ids = list(range(num_blocks * BLOCK_TOKENS))
    return [
        KVBlock(name, tuple(ids[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]), bytes([i]))
        for i, name in enumerate(block_hashes(ids, salt=SALT))
    ]


def test_fetched_blocks_are_imported_and_shared() -> None:
    """Their data is written into the row's own blocks before the step, and the next row hits
    them.
    """
    scheduler = make_scheduler(max_batch_tokens=200)
    row = fetched("a", 100, kv_blocks(3))
    scheduler.add(row)
    plan = step(scheduler)
    assert [(one.block_id, one.data) for one in plan.imports] == [
        (row.block_ids[i], bytes([i])) for i in range(3)
    ]
    assert shown(plan.chunks) == [("a", 4, True)]
    assert (row.cached_tokens, row.fetched_tokens) == (96, 96)
    assert scheduler.prefix_cache.fetched_hits == 96
    neighbour = sequence("b", 100)
    scheduler.add(neighbour)
    assert step(scheduler).imports == []
    assert (neighbour.cached_tokens, neighbour.fetched_tokens) == (96, 0)


def test_a_fetched_block_is_used_behind_a_local_one() -> None:
    """What is here is not written again."""
    scheduler = make_scheduler(max_batch_tokens=200)
    scheduler.add(sequence("local", 40))
    step(scheduler)
    row = fetched("a", 100, kv_blocks(3)[1:])
    scheduler.add(row)
    assert [one.data for one in step(scheduler).imports] == [bytes([1]), bytes([2])]
    assert (row.cached_tokens, row.fetched_tokens) == (96, 64)


@pytest.mark.parametrize(
    "wrong",
    [
        KVBlock(kv_blocks(1)[0].hash, tuple(range(1, 33)), b"x"),
        KVBlock(b"another name", tuple(range(32)), b"x"),
        kv_blocks(2)[1],
    ],
    ids=["other tokens", "other name", "a gap before it"],
)
def test_a_fetched_block_that_is_not_the_rows_own_is_a_miss(wrong: KVBlock) -> None:
    """It is ignored."""
    scheduler = make_scheduler(max_batch_tokens=200)
    row = fetched("a", 100, [wrong])
    scheduler.add(row)
    plan = step(scheduler)
    assert (plan.imports, shown(plan.chunks)) == ([], [("a", 100, True)])
    assert (row.cached_tokens, row.fetched_tokens) == (0, 0)


def test_check_integrity_finds_a_wrong_book() -> None:
    """A block that a row dropped behind its back is noticed."""
    scheduler = make_scheduler()
    row = sequence("a", 1)
    scheduler.add(row)
    scheduler.plan()
    row.block_ids.append(9)
    with pytest.raises(AssertionError, match="rows hold"):
        scheduler.check_integrity()
