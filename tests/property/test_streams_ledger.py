"""In any order of records, ends and rebalances: nothing is committed past unfinished work."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.streams.ledger import AckLedger, Place

PLACES = [Place("requests", number) for number in range(3)]
places = st.sampled_from(PLACES)


class Commits(RuleBasedStateMachine):
    """A log with holes, a group that keeps what is committed, one worker and its ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = AckLedger()
        self.log: dict[Place, list[int]] = {}
        self.next_record: dict[Place, int] = {}  # index into the log: what is fetched next
        self.committed: dict[Place, int] = {}
        self.running: set[tuple[Place, int]] = set()
        self.finished: set[tuple[Place, int]] = set()
        self.owned: set[Place] = set(PLACES)

    @initialize(gaps=st.lists(st.lists(st.integers(1, 3), max_size=8), min_size=3, max_size=3))
    def fill(self, gaps: list[list[int]]) -> None:
        """Offsets with holes where transaction markers stood."""
        for place, steps in zip(PLACES, gaps, strict=True):
            offsets, offset = [], -1
            for step in steps:
                offset += step
                offsets.append(offset)
            self.log[place] = offsets
            self.next_record[place] = self.committed[place] = 0
            self.ledger.begin(place, 0)

    @rule(place=places)
    def read(self, place: Place) -> None:
        """The next record of a partition is taken, unless it is under way already."""
        if place not in self.owned or self.next_record[place] >= len(self.log[place]):
            return
        offset = self.log[place][self.next_record[place]]
        self.next_record[place] += 1
        if self.ledger.take(place, offset, 0.0):
            assert (place, offset) not in self.running
            self.running.add((place, offset))
        else:  # under way, or done with here: nothing is done twice
            assert (place, offset) in self.running | self.finished

    @rule(place=places)
    def throw_away(self, place: Place) -> None:
        """A record is fetched and never handed over: nobody says so."""
        if place in self.owned and self.next_record[place] < len(self.log[place]):
            self.next_record[place] += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Any running record ends, in any order."""
        place, offset = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard((place, offset))
        self.finished.add((place, offset))
        self.ledger.finish(place, offset)
        assert not self.ledger.is_open(place, offset)

    @rule(place=places, offset=st.integers(0, 30))
    def finish_of_a_stranger(self, place: Place, offset: int) -> None:
        """A task of a partition that was lost reports its end: nothing is noted for it."""
        if (place, offset) not in self.running:
            self.ledger.finish(place, offset)

    @rule(accepted=st.booleans())
    def commit(self, accepted: bool) -> None:
        """What is due goes to the group, which may refuse it."""
        for place, offset in self.ledger.watermarks().items():
            assert place in self.owned
            assert offset >= self.committed[place], "a commit never goes back"
            if accepted:
                self.committed[place] = offset
                self.ledger.committed(place, offset)

    @rule(kept=st.sets(places))
    def rebalance(self, kept: set[Place]) -> None:
        """Some partitions go; what stays is read again from what was committed."""
        lost = set(self.ledger.keep_only(kept))
        expected = {(place, offset) for place, offset in self.running if place not in kept}
        assert expected == lost
        self.running -= lost
        self.owned = set(kept)
        for place in kept:
            self.ledger.begin(place, self.committed[place])
            self._seek(place)

    @rule(place=places, count=st.integers(0, 3))
    def come_back(self, place: Place, count: int) -> None:
        """Another owner got some of it done and left: the partition is assigned here again."""
        if place in self.owned:
            return
        self.owned.add(place)
        unfinished = [o for o in self.log[place] if o >= self.committed[place]][:count]
        for offset in unfinished:
            self.finished.add((place, offset))
            self.committed[place] = offset + 1
        self._begin_again(place)

    @rule(place=places, early=st.booleans())
    def take_before_the_committed_offset_is_known(self, place: Place, early: bool) -> None:
        """After a join, a record may be handed over before the group has said where it is."""
        if place in self.owned or not early:
            return
        self.owned.add(place)
        self._seek(place)
        self.read(place)
        assert place not in self.ledger.watermarks()
        self.ledger.begin(place, self.committed[place])

    @rule(place=places)
    def look_into_gaps(self, place: Place) -> None:
        """An empty gap is filled; from one that holds a record, reading goes on again."""
        if place not in self.owned:
            return
        end = max(self.log[place], default=-1) + 2
        for gap in self.ledger.gaps(place, end):
            inside = [index for index, o in enumerate(self.log[place]) if gap[0] <= o < gap[1]]
            if inside:
                self.next_record[place] = inside[0]
                return
            self.ledger.fill(place, gap)

    def _begin_again(self, place: Place) -> None:
        self.ledger.begin(place, self.committed[place])
        self._seek(place)

    def _seek(self, place: Place) -> None:
        below = [o for o in self.log[place] if o < self.committed[place]]
        self.next_record[place] = len(below)

    @invariant()
    def nothing_unfinished_is_committed(self) -> None:
        """Every record below the committed offset is finished."""
        for place, committed in self.committed.items():
            below = {(place, offset) for offset in self.log[place] if offset < committed}
            assert below <= self.finished

    @invariant()
    def open_records_are_counted(self) -> None:
        """What is open is what runs here."""
        assert len(self.running) == self.ledger.num_open

    def teardown(self) -> None:
        """Once everything is read and finished, one commit reaches the end of every partition."""
        if not self.log:
            return
        for place in PLACES:
            if place not in self.owned:
                self.owned.add(place)
                self._begin_again(place)
        for _ in range(20):  # looking and reading on, as the worker does for ever
            for place in PLACES:
                self.look_into_gaps(place)
                for _ in self.log[place]:
                    self.read(place)
            for place, offset in sorted(self.running):
                self.ledger.finish(place, offset)
                self.finished.add((place, offset))
            self.running.clear()
        self.commit(accepted=True)
        for place in PLACES:
            assert self.committed[place] > max(self.log[place], default=-1)
        assert self.ledger.watermarks() == {}
        self.nothing_unfinished_is_committed()


TestCommits = Commits.TestCase
TestCommits.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
