"""The backlog against a log that is written, aborted, truncated and made anew at random."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.lag_backlog import Backlog, floor_of
from headrace.consumers.lag_work import Work

PLACE = ("requests", 0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["record", "marker", "commit", "expire", "truncate", "anew", "read", "ask"]
        ),
        st.integers(0, 6),
    ),
    max_size=60,
)


@dataclass
class Log:
    """Offsets from `start` on: True where a record stands, False where a marker does."""

    start: int = 0
    kinds: list[bool] = field(default_factory=list)
    committed: int | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.kinds)

    def unfinished(self) -> list[int]:
        """Offsets that a worker would still read."""
        floor = floor_of(self.committed, self.start, self.end)
        return [o for o in range(floor, self.end) if self.kinds[o - self.start]]

    def change(self, step: str, number: int) -> None:
        if step in ("record", "marker"):
            self.kinds += [step == "record"] * number
        elif step == "commit":
            self.committed = min(self.end, max(self.start, self.committed or 0) + number)
        elif step == "expire":
            self.committed = None
        elif step == "truncate":
            cut = min(number, len(self.kinds))
            self.start, self.kinds = self.start + cut, self.kinds[cut:]
        elif step == "anew":
            self.start, self.kinds = 0, []


def _read(backlog: Backlog, log: Log, most: int) -> None:
    """As a consumer at `read_to` would hand it on: records, and a position behind markers."""
    one = backlog.get(PLACE)
    while PLACE in backlog.behind() and most and log.start <= one.read_to < log.end:
        if log.kinds[one.read_to - log.start]:
            one.add(one.read_to, (one.read_to + 1) * 1000, Work(3, 2))
        else:
            one.reach(one.read_to + 1)
        most -= 1


@given(STEPS, st.integers(1, 8))
def test_read_up_to_the_end_it_is_right_to_the_record(
    steps: list[tuple[str, int]], max_remembered: int
) -> None:
    """Asked and read at any times: never negative, never under what is left, and exact once all
    that has room was read.

    NOTE: a topic made anew counts from the next question on, and is told by its shorter end.
    """
    log, backlog = Log(), Backlog(max_remembered=max_remembered, reserved=1)
    backlog.at(PLACE, 0)
    for step, number in [*steps, ("ask", 0)]:
        if step == "read":
            _read(backlog, log, number)
        elif step != "ask":
            log.change(step, number)
            if step != "anew":
                continue
        one = backlog.get(PLACE)
        one.move(floor_of(log.committed, log.start, log.end), log.end)
        figures = backlog.figures(100.0, 10**9)[PLACE]
        assert figures.records >= len(log.unfinished())
        assert figures.records <= log.end - log.start
        assert figures.seconds >= 0
        assert figures.tokens >= 0
        assert backlog.num_remembered <= max_remembered
    _read(backlog, log, 10**6)
    left, one = log.unfinished(), backlog.get(PLACE)
    figures = backlog.figures(100.0, 10**9)[PLACE]
    if one.read_to == log.end:
        assert len(left) == figures.records
        assert 5 * len(left) == figures.tokens
    if left:
        assert 10**6 - left[0] - 1 == figures.seconds
