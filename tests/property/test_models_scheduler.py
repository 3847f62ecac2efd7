"""The scheduler under any sequence of arrivals, steps, cancels, failures and fetched blocks.

A model beside it keeps what really lies in each block: at every step the row's blocks must contain
the row's own tokens, whoever computed them.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.block_pool import BlockPool
from headrace.models.prefix import block_hashes, root_hash
from headrace.models.request import EngineError, KVBlock
from headrace.models.scheduler import Scheduler, StepPlan
from headrace.models.sequence import TokenSequence

SALTS = (b"tenant a", b"tenant b")
FIRST_IDS = (0, 1000)  # prompts that begin alike are prefixes of each other


def content(salt: bytes, token_ids: list[int], position: int) -> tuple[bytes, tuple[int, ...]]:
    """What a slot holds of the token at `position`: it depends on all before it."""
    return salt, tuple(token_ids[: position + 1])


class SchedulerMachine(RuleBasedStateMachine):
    """Plays the engine: adds rows, runs the planned steps, ends rows, removes some in between."""

    @initialize(
        num_blocks=st.integers(2, 9), max_batch_size=st.integers(1, 4), more=st.integers(0, 60)
    )
    def make(self, num_blocks: int, max_batch_size: int, more: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.max_batch_size, self.max_batch_tokens = max_batch_size, max_batch_size + more
        self.scheduler: Scheduler[TokenSequence] = Scheduler(
            self.pool, max_batch_size=max_batch_size, max_batch_tokens=self.max_batch_tokens
        )
        self.rows: dict[str, TokenSequence] = {}
        self.salts: dict[str, bytes] = {}
        self.slots: dict[tuple[int, int], object] = {}
        self.num_added = 0
        self.last_blocks: dict[str, list[int]] = {}

    @rule(
        num_prompt=st.integers(1, 150),
        max_tokens=st.integers(1, 80),
        priority=st.integers(-1, 1),
        first_id=st.sampled_from(FIRST_IDS),
        salt=st.sampled_from(SALTS),
        fetched=st.sets(st.integers(0, 4)),
    )
    def add(
        self,
        num_prompt: int,
        max_tokens: int,
        priority: int,
        first_id: int,
        salt: bytes,
        fetched: set[int],
    ) -> None:
        self.num_added += 1
        prompt_ids = list(range(first_id, first_id + num_prompt))
        names = block_hashes(prompt_ids, salt=salt)
        row = TokenSequence(
            str(self.num_added),
            prompt_ids,
            max_total_tokens=num_prompt + max_tokens,
            priority=priority,
            root_hash=root_hash(salt),
            kv_blocks=[
                KVBlock(
                    names[index],
                    tuple(prompt_ids[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]),
                    bytes([index]),
                )
                for index in fetched
                if index < len(names)
            ],
        )
        try:
            self.scheduler.add(row)
        except EngineError:
            assert -(-(row.max_total_tokens - 1) // BLOCK_TOKENS) > self.pool.num_blocks
        else:
            self.rows[row.key] = row
            self.salts[row.key] = salt

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), failed=st.booleans())
    def remove(self, data: st.DataObject, *, failed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        names = block_hashes(self.rows[key].token_ids, salt=self.salts[key])
        is_running = bool(self.rows[key].block_ids)
        num_known = self.rows[key].num_computed // BLOCK_TOKENS
        self.scheduler.remove(key, failed=failed)
        self.forget(key)
        if failed and is_running:
            reusable = [self.pool.find_by_hash(name) for name in names[:num_known]]
            own = {block.block_id for block in reusable if block is not None}
            assert not own & set(self.last_blocks.get(key, ())), "a failed row's block is reused"

    @precondition(lambda self: any(row.block_ids for row in self.rows.values()))
    @rule(data=st.data())
    def start_over(self, data: st.DataObject) -> None:
        """At most once a row, and only if it had blocks that others computed."""
        running = [key for key, row in sorted(self.rows.items()) if row.block_ids]
        row = self.rows[data.draw(st.sampled_from(running))]
        may, blocks = row.has_reused and not row.started_over, set(row.block_ids)
        assert self.scheduler.try_start_over(row) == may
        assert bool(row.block_ids) != may
        if may:
            for index in range(row.num_tokens // BLOCK_TOKENS):
                again = self.pool.find(row.block_hash(index), row.block_tokens(index))
                assert again not in blocks, "what it had is reused"

    def forget(self, key: str) -> None:
        del self.rows[key], self.salts[key]

    @rule(num_steps=st.integers(1, 8))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def step(self) -> None:
        running = [row for row in self.rows.values() if row.block_ids]
        decoding = [row for row in running if row.num_uncomputed == 1]
        plan = self.scheduler.plan()
        self.scheduler.check_integrity()
        self.check_plan(plan)
        planned = {chunk.generation.key for chunk in plan.chunks}
        assert all(row.key in planned for row in decoding if row.block_ids), "one had to wait"
        self.run(plan)
        self.scheduler.check_integrity()

    def check_plan(self, plan: StepPlan[TokenSequence]) -> None:
        chunks = plan.chunks
        assert bool(chunks) == bool(self.rows), "rows wait for ever, or ended ones run"
        assert sum(chunk.num_tokens for chunk in chunks) <= self.max_batch_tokens
        assert len({chunk.generation.key for chunk in chunks}) == len(chunks) > 0 or not self.rows
        running = [row for row in self.rows.values() if row.block_ids]
        planned = {chunk.generation.key for chunk in chunks}
        if running:
            assert min(running, key=lambda row: row.rank).key in planned, "the first gets on"

    def run(self, plan: StepPlan[TokenSequence]) -> None:
        """Play the runner: write what the plan says, read what attention would read."""
        by_block = {block_id: row for row in self.rows.values() for block_id in row.block_ids}
        for block in plan.imports:
            row = by_block[block.block_id]
            start = row.block_ids.index(block.block_id) * BLOCK_TOKENS
            assert bytes(block.data) == bytes([start // BLOCK_TOKENS])
            for place in range(BLOCK_TOKENS):
                self.slots[block.block_id, place] = self.expected(row, start + place)
        for chunk in plan.chunks:
            row, end = chunk.generation, chunk.generation.num_computed + chunk.num_tokens
            assert chunk.num_tokens >= 1
            assert chunk.needs_logits == (end == row.num_tokens)
            for position in range(row.num_computed, end):
                index, place = divmod(position, BLOCK_TOKENS)
                self.slots[row.block_ids[index], place] = self.expected(row, position)
        for chunk in plan.chunks:
            row = chunk.generation
            for position in range(row.num_computed + chunk.num_tokens):
                index, place = divmod(position, BLOCK_TOKENS)
                found = self.slots.get((row.block_ids[index], place))
                assert found == self.expected(row, position), "another row's state"
            self.scheduler.commit(chunk)
            if chunk.needs_logits:
                row.token_ids.append(5 + row.num_tokens % 3)
            if row.num_tokens == row.max_total_tokens:
                self.scheduler.remove(row.key)
                self.forget(row.key)
        self.last_blocks = {key: list(row.block_ids) for key, row in self.rows.items()}

    def expected(self, row: TokenSequence, position: int) -> object:
        return content(self.salts[row.key], row.token_ids, position)

    @precondition(lambda self: self.rows)
    @rule()
    def run_to_the_end(self) -> None:
        """Whatever is there ends in a bounded number of steps, preempted or not."""
        num_steps = len(self.rows) * sum(row.max_total_tokens for row in self.rows.values())
        for _ in range(num_steps):
            if not self.rows:
                break
            self.step()
        assert not self.rows
        assert self.pool.num_held == 0

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.rows)
        for row in self.rows.values():
            assert 0 <= row.fetched_tokens <= row.cached_tokens <= row.num_prompt_tokens
        counts = self.scheduler.prefix_cache
        assert counts.local_hits + counts.fetched_hits <= counts.queried


SchedulerMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None
)
TestScheduler = SchedulerMachine.TestCase
