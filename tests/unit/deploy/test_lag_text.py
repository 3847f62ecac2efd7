"""How the lag is shown."""

import time

import pytest

from headrace.consumers.lag import Lag, PartitionLag
from headrace.deploy.lag_text import age_text, lag_json, lag_lines, lag_table

REQUESTS = Lag(
    (
        PartitionLag("h.requests", 0, 1234, 192.0, 40_000, 7, 0, 1241),
        PartitionLag("h.requests", 1, 0, 0.0, 0, None, 0, 0),
    ),
    read_at_s=0.0,
)
CONTROL = PartitionLag("h.control", 0, 1, 2.5, 0, 3, 0, 4)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.9, "0s"), (59.9, "59s"), (60, "1m"), (7199, "1h"), (200_000, "2d")],
)
def test_ages_are_rounded_down(seconds: float, text: str) -> None:
    """One number and its unit."""
    assert age_text(seconds) == text


def test_the_plain_table() -> None:
    """A line for each partition and the total; what is unknown is a dash."""
    assert lag_lines(REQUESTS).splitlines() == [
        "partition  records  oldest  tokens  committed   end",
        "        0    1,234      3m  40,000          7  1241",
        "        1        0       -       0          -     0",
        "    total    1,234      3m  40,000",
    ]


def test_with_two_topics_each_line_names_its_own() -> None:
    """As `--all` shows it."""
    lines = lag_lines(Lag((CONTROL, *REQUESTS.partitions), 0.0)).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["topic", "partition"],
        ["h.control", "0"],
        ["h.requests", "0"],
        ["h.requests", "1"],
        ["total", "1,235"],
    ]


def test_the_table_for_terminals_has_the_same_cells() -> None:
    """The header, two partitions and the total."""
    table = lag_table(REQUESTS)
    assert [column.header for column in table.columns] == lag_lines(REQUESTS).split("\n")[0].split()
    assert list(table.columns[1].cells) == ["1,234", "0", "1,234"]


def test_where_not_all_fit_those_furthest_behind_are_shown() -> None:
    """In their own order, with the total of all."""
    partitions = [PartitionLag("h", n, n % 5, float(n % 5), 0, 0, 0, 0) for n in range(10)]
    table = lag_table(Lag(tuple(partitions), 0.0), max_rows=4)
    assert list(table.columns[0].cells) == ["3", "4", "8", "9", "total"]
    assert table.caption == "6 partitions that are less behind"


def test_the_object_for_programs_has_totals_and_partitions() -> None:
    """`time_ms` is when it was read, by the epoch."""
    found = lag_json(Lag(REQUESTS.partitions, time.monotonic() - 60))
    assert abs(time.time() * 1000 - 60_000 - found.pop("time_ms")) < 5_000
    partitions = found.pop("partitions")
    assert found == {"records": 1234, "seconds": 192.0, "tokens": 40_000}
    assert partitions[1] == {
        "topic": "h.requests",
        "partition": 1,
        "records": 0,
        "seconds": 0.0,
        "tokens": 0,
        "committed": None,
        "start": 0,
        "end": 0,
    }
