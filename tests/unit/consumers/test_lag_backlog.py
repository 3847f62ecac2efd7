"""The rules of the lag: what counts, from which offset on, and within what bound."""

import pytest

from headrace.consumers.lag_backlog import Backlog, PartitionBacklog, floor_of
from headrace.consumers.lag_work import NO_WORK, Work

PLACE = ("requests", 0)


@pytest.mark.parametrize(
    ("committed", "high_water", "floor"),
    [
        (None, None, 40),
        (12, None, 40),
        (40, None, 40),
        (47, None, 47),
        (50, None, 50),
        (90, None, 40),
        (90, 60, 40),
        (55, 60, 50),
    ],
    ids=["none", "truncated", "start", "middle", "end", "beyond", "other-log", "open-transaction"],
)
def test_the_group_goes_on_where_a_worker_would(
    committed: int | None, high_water: int | None, floor: int
) -> None:
    """In a log of [40, 50): with an offset that is out of range workers begin at the start."""
    assert floor_of(committed, 40, 50, high_water) == floor


def test_markers_and_aborted_records_do_not_count() -> None:
    """Two records stand in offsets 0 to 9; the rest is known to be none."""
    one = PartitionBacklog(0)
    one.move(0, 10)
    one.add(2, 1_000, NO_WORK)
    one.add(7, 2_000, NO_WORK)
    assert one.figures(0, 0, 3_000).records == 4
    one.reach(10)
    assert one.figures(0, 0, 3_000).records == 2


def test_what_is_committed_is_forgotten() -> None:
    """The oldest that is left gives the age."""
    one = PartitionBacklog(0)
    for offset in range(4):
        one.add(offset, 1_000 * offset, Work(10, 5))
    one.move(3, 4)
    assert one.figures(100, 0, 10_000) == (1, 7.0, 15)


def test_a_group_that_was_set_back_has_its_records_again() -> None:
    """They are read again from where it goes on."""
    one = PartitionBacklog(0)
    one.move(8, 10)
    assert one.move(3, 10)
    assert (one.read_to, one.figures(0, 0, 0).records) == (3, 7)


def test_a_shorter_log_is_another_one() -> None:
    """What is remembered of the old one is forgotten."""
    one = PartitionBacklog(0)
    for offset in range(8):
        one.add(offset, 0, NO_WORK)
    assert one.is_other_log(3)
    assert one.move(0, 3)
    assert (one.read_to, one.figures(0, 0, 0).records) == (0, 3)


def test_a_clock_ahead_of_ours_gives_no_negative_age() -> None:
    """The producer's timestamp is a minute ahead."""
    one = PartitionBacklog(0)
    one.add(0, 61_000, NO_WORK)
    assert one.figures(0, 0, 1_000).seconds == 0.0


@pytest.mark.parametrize("timestamp_ms", [None, -1, 0], ids=["not-read", "none", "zero"])
def test_an_unknown_age_grows_from_when_it_was_noticed(timestamp_ms: int | None) -> None:
    """A partition that cannot be read, or whose records have no time, must not look fresh."""
    one = PartitionBacklog(0)
    one.move(0, 1)
    if timestamp_ms is not None:
        one.add(0, timestamp_ms, NO_WORK)
    assert [one.figures(0, 0, now_ms).seconds for now_ms in (5_000, 35_000)] == [0.0, 30.0]


def test_beyond_the_bound_offsets_are_counted() -> None:
    """Their tokens are the mean of those that are remembered."""
    backlog = Backlog(max_remembered=4, reserved=1)
    one = backlog.at(PLACE, 0)
    one.move(0, 100)
    while PLACE in backlog.behind():
        one.add(one.read_to, 0, Work(10 * (one.read_to + 1), 0))
    assert backlog.num_remembered == 4
    assert backlog.figures(7.0, 0)[PLACE][::2] == (100, 2500)


def test_a_large_backlog_leaves_each_partition_its_oldest() -> None:
    """One partition has taken all the room; another still may read its first record."""
    backlog = Backlog(max_remembered=2, reserved=1)
    for number in (0, 1):
        backlog.at(("requests", number), 0).move(0, 10)
    for offset in range(2):
        backlog.get(("requests", 0)).add(offset, 0, NO_WORK)
    assert {("requests", 1)} == backlog.behind()


def test_what_cannot_be_read_is_tried_again_when_the_group_has_passed_it() -> None:
    """Until then nobody reads there, and offsets are counted."""
    backlog = Backlog()
    one = backlog.at(PLACE, 0)
    one.move(0, 10)
    one.is_unreadable = True
    assert set() == backlog.behind()
    one.move(5, 10)
    assert {PLACE} == backlog.behind()
    assert one.figures(0, 0, 0).records == 5


def test_a_record_that_comes_twice_counts_once() -> None:
    """After a seek the client may hand out what was read already."""
    one = PartitionBacklog(0)
    for offset in (0, 1, 0, 1):
        one.add(offset, 0, NO_WORK)
    assert one.figures(0, 0, 0).records == 2
