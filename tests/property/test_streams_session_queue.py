"""Turns of a session start one after another, in the order in which they were read."""

import asyncio
from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.streams.session_queue import SessionKey, SessionQueues

sessions = st.sampled_from([("t1", "s1"), ("t1", "s2"), ("t2", "s1")])


class Turns(RuleBasedStateMachine):
    """Turns that come, end or are dropped in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = SessionQueues()
        self.waiting: dict[SessionKey, list[asyncio.Event]] = defaultdict(list)
        self.gone: list[tuple[SessionKey, asyncio.Event]] = []

    @rule(session=sessions)
    def come(self, session: SessionKey) -> None:
        """A turn is read."""
        self.waiting[session].append(self.queues.enqueue(session))

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Any turn ends or is dropped, the running one or one that waits."""
        session = data.draw(st.sampled_from([s for s, turns in self.waiting.items() if turns]))
        turn = data.draw(st.sampled_from(self.waiting[session]))
        self.waiting[session] = [one for one in self.waiting[session] if one is not turn]
        self.queues.leave(session, turn)
        self.gone.append((session, turn))

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def leave_again(self, data: st.DataObject) -> None:
        """Leaving twice takes nobody else's place."""
        self.queues.leave(*data.draw(st.sampled_from(self.gone)))

    @invariant()
    def only_the_first_may_start(self) -> None:
        """The first of each session may start; nobody starts before the one before it left."""
        for turns in self.waiting.values():
            assert [True, *[False] * (len(turns) - 1)][: len(turns)] == [t.is_set() for t in turns]

    @invariant()
    def nothing_leaks(self) -> None:
        """A queue exists for each session that has a turn here."""
        assert sum(bool(turns) for turns in self.waiting.values()) == len(self.queues)


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
