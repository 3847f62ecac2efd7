"""Which part of a topic the flags mean."""

import pytest

from headrace.consumers.range_reader import Span
from headrace.deploy.replaying.pace import Pace
from headrace.deploy.replaying.selection import OffsetRange, Selection, parse_time, span_s

NOW_MS = 1_796_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h ago", NOW_MS - 3_600_000),
        ("90s", NOW_MS - 90_000),
        ("2d", NOW_MS - 172_800_000),
        ("1796000000000", 1_796_000_000_000),
        ("2026-01-02T03:04:05Z", 1_767_323_045_000),
        ("2026-01-02T03:04:05.500+01:00", 1_767_319_445_500),
    ],
)
def test_times(text: str, expected: int) -> None:
    """So long ago, milliseconds of the epoch, or RFC 3339."""
    assert expected == parse_time(text, NOW_MS)


@pytest.mark.parametrize("text", ["", "soon", "1", "1y", "2026-01-02T03:04:05", "-5", "1h later"])
def test_no_times(text: str) -> None:
    """A time without its zone would mean another one elsewhere."""
    with pytest.raises(ValueError, match=r"^(is no time|does not say)"):
        parse_time(text, NOW_MS)


def test_spans_of_time() -> None:
    """In seconds."""
    assert (span_s("10m"), span_s("10m ago"), span_s("10")) == (600, 600, None)


def test_offsets_include_both_ends() -> None:
    """An open end is what can be read."""
    assert OffsetRange.parse("3:0-99") == OffsetRange(3, 0, 99)
    assert OffsetRange.parse("3:5-") == OffsetRange(3, 5, None)


@pytest.mark.parametrize("text", ["", "3", "3:5", "3:9-5", "-1:0-5", "a:0-5", "3:0-5-7", "٣:0-1"])
def test_no_offsets(text: str) -> None:
    """Refused, not guessed."""
    with pytest.raises(ValueError, match=r"^(is no range|ends before)"):
        OffsetRange.parse(text)


def test_ranges_stay_within_what_can_be_read() -> None:
    """Those that touch are read once."""
    chosen = Selection(
        offsets=tuple(map(OffsetRange.parse, ("3:0-9", "3:8-12", "3:90-", "3:20-20")))
    )
    assert chosen.limited(3, Span(5, 100)) == [Span(5, 13), Span(20, 21), Span(90, 100)]
    assert chosen.limited(3, Span(5, 15)) == [Span(5, 13)]
    assert chosen.limited(4, Span(5, 15)) == []
    assert Selection().limited(4, Span(5, 15)) == [Span(5, 15)]


def test_sessions_are_keys() -> None:
    """None named means all, those without a key among them."""
    assert Selection().has_session_of(None)
    chosen = Selection(sessions=frozenset({"s"}))
    assert [chosen.has_session_of(key) for key in (b"s", b"t", None, b"\xff")] == [
        *(True, False, False, False)
    ]


def test_paces() -> None:
    """The first request is due at once, the others as they came then."""
    due = [[pace.due_s(time_ms) for time_ms in (1000, 3000, 2000)] for pace in
           (Pace.parse("max"), Pace.parse("original"), Pace.parse("4"))]  # fmt: skip
    assert due == [[0, 0, 0], [0, 2, 1], [0, 0.5, 0.25]]


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "fast"])
def test_no_paces(text: str) -> None:
    """Refused, not guessed."""
    with pytest.raises(ValueError, match=r"^is no pace"):
        Pace.parse(text)


@pytest.mark.parametrize("missing_ms", [0, -1])
def test_a_request_without_a_time_is_due_at_once(missing_ms: int) -> None:
    """Nor do those behind it wait for the decades since 1970."""
    pace = Pace.parse("original")
    assert [pace.due_s(ms) for ms in (missing_ms, 5_000, missing_ms, 7_000)] == [0, 0, 0, 2]
