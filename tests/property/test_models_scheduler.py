"""The scheduler under any sequence of arrivals, steps and ends."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.models.request import EngineError
from headrace.models.scheduler import Scheduler

MAX_BATCH_SIZE, MAX_BATCH_TOKENS, KV_POOL_TOKENS = 3, 7, 40


@dataclass
class CountedRow:
    """A generation that is only its counts."""

    key: str
    priority: int
    num_tokens: int
    max_total_tokens: int
    num_computed: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    """Plays the engine: adds rows, runs the planned steps, ends rows, removes some in between."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler[CountedRow] = Scheduler(
            max_batch_size=MAX_BATCH_SIZE,
            max_batch_tokens=MAX_BATCH_TOKENS,
            kv_pool_tokens=KV_POOL_TOKENS,
        )
        self.rows: dict[str, CountedRow] = {}
        self.num_added = 0

    @rule(num_prompt=st.integers(1, 30), max_tokens=st.integers(1, 20), priority=st.integers(-1, 1))
    def add(self, num_prompt: int, max_tokens: int, priority: int) -> None:
        self.num_added += 1
        row = CountedRow(str(self.num_added), priority, num_prompt, num_prompt + max_tokens)
        try:
            self.scheduler.add(row)
        except EngineError:
            assert row.max_total_tokens > KV_POOL_TOKENS
        else:
            self.rows[row.key] = row

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        self.scheduler.remove(key)
        del self.rows[key]

    @rule()
    def step(self) -> None:
        chunks = self.scheduler.plan()
        assert bool(chunks) == bool(self.rows), "rows wait for ever, or ended ones run"
        assert sum(chunk.num_tokens for chunk in chunks) <= MAX_BATCH_TOKENS
        assert len({chunk.generation.key for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            row, needs_logits = chunk.generation, chunk.needs_logits
            assert chunk.num_tokens >= 1
            row.num_computed += chunk.num_tokens
            assert row.num_computed <= row.num_tokens
            assert needs_logits == (row.num_computed == row.num_tokens)
            if needs_logits:
                row.num_tokens += 1
            if row.num_tokens == row.max_total_tokens:
                self.scheduler.remove(row.key)
                del self.rows[row.key]

    @precondition(lambda self: self.rows)
    @rule()
    def run_to_the_end(self) -> None:
        """Whatever is there ends in a bounded number of steps."""
        num_steps = sum(row.max_total_tokens for row in self.rows.values())
        for _ in range(num_steps):
            self.step()
        assert not self.rows

    @invariant()
    def books_balance(self) -> None:
        self.scheduler.check_integrity()
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.rows)


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestScheduler = SchedulerMachine.TestCase
