"""What the scheduler puts into a step, and in which order it admits."""

from dataclasses import dataclass

import pytest

from headrace.models.request import EngineError, EngineErrorCode
from headrace.models.scheduler import Scheduler


@dataclass
class CountedRow:
    """A generation that is only its counts."""

    key: str
    num_tokens: int
    max_total_tokens: int = 20
    num_computed: int = 0
    priority: int = 0


def make_scheduler(
    *, max_batch_size: int = 4, max_batch_tokens: int = 8, kv_pool_tokens: int = 100
) -> Scheduler[CountedRow]:
    return Scheduler(
        max_batch_size=max_batch_size,
        max_batch_tokens=max_batch_tokens,
        kv_pool_tokens=kv_pool_tokens,
    )


def planned(scheduler: Scheduler[CountedRow]) -> list[tuple[str, int, bool]]:
    return [
        (chunk.generation.key, chunk.num_tokens, chunk.needs_logits) for chunk in scheduler.plan()
    ]


def test_decoding_rows_come_first_and_prefill_gets_the_rest() -> None:
    """A long prompt is cut to what the decoding rows leave of the token budget."""
    scheduler = make_scheduler()
    scheduler.add(CountedRow("prompt", num_tokens=12))
    scheduler.add(CountedRow("decoding", num_tokens=6, num_computed=5))
    assert planned(scheduler) == [("decoding", 1, True), ("prompt", 7, False)]


def test_two_prompts_share_a_step() -> None:
    """What is left of the budget goes to the next prompt; the last chunk gets logits."""
    scheduler = make_scheduler()
    scheduler.add(CountedRow("a", num_tokens=5))
    scheduler.add(CountedRow("b", num_tokens=9))
    assert planned(scheduler) == [("a", 5, True), ("b", 3, False)]


def test_admission_is_by_priority_then_arrival() -> None:
    """And never beyond the batch size."""
    scheduler = make_scheduler(max_batch_size=2)
    for key, priority in (("a", 0), ("b", 0), ("c", 3)):
        scheduler.add(CountedRow(key, num_tokens=1, priority=priority))
    assert [key for key, _, _ in planned(scheduler)] == ["c", "a"]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_a_large_request_is_not_overtaken() -> None:
    """While the pool has no room for the first in the queue, the ones behind it wait too."""
    scheduler = make_scheduler(kv_pool_tokens=30)
    scheduler.add(CountedRow("running", num_tokens=1, max_total_tokens=20))
    scheduler.add(CountedRow("large", num_tokens=1, max_total_tokens=30))
    scheduler.add(CountedRow("small", num_tokens=1, max_total_tokens=5))
    assert [key for key, _, _ in planned(scheduler)] == ["running"]
    scheduler.remove("running")
    assert [key for key, _, _ in planned(scheduler)] == ["large"]


def test_what_can_never_fit_is_refused() -> None:
    """It would block the queue for ever."""
    with pytest.raises(EngineError) as caught:
        make_scheduler(kv_pool_tokens=10).add(CountedRow("a", 1, max_total_tokens=11))
    assert caught.value.code is EngineErrorCode.OUT_OF_MEMORY


@pytest.mark.parametrize(("size", "tokens"), [(0, 8), (9, 8)])
def test_impossible_limits_are_refused(size: int, tokens: int) -> None:
    """Each running row needs one token of the budget."""
    with pytest.raises(ValueError, match="max_batch_size"):
        make_scheduler(max_batch_size=size, max_batch_tokens=tokens)


def test_check_integrity_finds_a_wrong_book() -> None:
    """A reservation that changed behind its back is noticed."""
    scheduler = make_scheduler()
    row = CountedRow("a", num_tokens=1)
    scheduler.add(row)
    scheduler.plan()
    row.max_total_tokens += 1
    with pytest.raises(AssertionError, match="reserved"):
        scheduler.check_integrity()
