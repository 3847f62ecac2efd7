"""Which generations run in the next step, how many tokens of each, and in which KV blocks.

Plain Python over ids and counts: no tensors, no clock, no threads. One owner calls it, from one
thread.
"""

import bisect
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.block_pool import BlockPool
from headrace.models.request import EngineError, EngineErrorCode
from headrace.models.sequence import TokenSequence

S = TypeVar("S", bound=TokenSequence)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[S]):
    """The next `num_tokens` tokens of one generation, to be computed in one step.

    `needs_logits`: it reaches the last known token, so that the next one can be chosen.
    """

    generation: S
    num_tokens: int
    needs_logits: bool


@dataclass(frozen=True, slots=True)
class BlockImport:
    """A block to be filled with fetched data before the step runs."""

    block_id: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[S]):
    """What to do next: first the imports, then the chunks as one batch."""

    imports: list[BlockImport]
    chunks: list[Chunk[S]]


@dataclass(slots=True)
class PrefixCacheCounts:
    """How far the prefix cache helped since the start. Units: prompt tokens."""

    queried: int = 0
    local_hits: int = 0
    fetched_hits: int = 0


class Scheduler(Generic[S]):
    """Continuous batching over a pool of KV blocks.

    1. Every running row that decodes gets its token in each step. If no block is left for it, the
       running row of the lowest rank gives its blocks up and waits again (preemption by recompute;
       what it computed stays cached while there is room).
    2. Waiting rows are admitted by rank (those that were begun elsewhere, as somebody reads them;
       then by priority, then by arrival), never out of that order, when
       there are blocks for all their known tokens and one more for each row that runs already;
       without these spare ones a newcomer would be preempted again at once.
    3. What is left of the token budget goes to the prefills. Half of it belongs to the one of the
       highest rank, so that a long prompt always gets on. The rest goes to the shortest: short
       prompts pass a long one, and the mean time to the first token is the lowest. (In equal shares
       all of several long prompts would end late, together.)

    The running row of the highest rank is never preempted for another, so it always gets on.

    A row that `runs_alone` passes all others and has the steps to itself; they keep their blocks,
    unless it needs them.
    """

    def __init__(self, pool: BlockPool, *, max_batch_size: int, max_batch_tokens: int) -> None:
        if not 1 <= max_batch_size <= max_batch_tokens:
            raise ValueError(
                f"max_batch_size is {max_batch_size}, must be in 1...{max_batch_tokens}"
                " (max_batch_tokens)"
            )
        self.pool = pool
        self.max_batch_size = max_batch_size
        self.max_batch_tokens = max_batch_tokens
        self.num_preemptions = 0
        self.prefix_cache = PrefixCacheCounts()
        self._waiting: list[S] = []  # both sorted by rank
        self._running: list[S] = []
        self._by_key: dict[str, S] = {}
        self._num_arrived = 0

    @property
    def num_waiting(self) -> int:
        """Generations that are not admitted yet, or were preempted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Generations that hold KV blocks."""
        return len(self._running)

    def add(self, row: S) -> None:
        """Put a generation into the queue.

        Raises: EngineError (out_of_memory) if the whole pool is too small for it.
        """
        # the last token is chosen and never computed
        num_blocks = _blocks_for(row.max_total_tokens - 1)
        if num_blocks > self.pool.num_blocks:
            raise EngineError(
                EngineErrorCode.OUT_OF_MEMORY,
                f"needs {num_blocks} KV blocks of {BLOCK_TOKENS} tokens,"
                f" the pool has {self.pool.num_blocks}",
                is_refusal=True,
            )
        is_begun = row.num_tokens > row.num_prompt_tokens
        row.rank = (not is_begun, -row.priority, self._num_arrived)
        self._num_arrived += 1
        self._by_key[row.key] = row
        bisect.insort(self._waiting, row, key=_rank)

    def remove(self, key: str, *, failed: bool = False) -> None:
        """Forget a generation, waiting or running, and release its blocks; an unknown key has no
        effect. The blocks of one that failed are not reused by anybody.
        """
        row = self._by_key.pop(key, None)
        if row is None:
            return
        if not row.block_ids:
            self._waiting.remove(row)
            return
        self._running.remove(row)
        if failed:
            for block_id in row.block_ids:
                self.pool.unregister(block_id)
        self._release_blocks(row)

    def try_start_over(self, row: S) -> bool:
        """Compute a running generation again from its first token, and let nobody reuse its blocks:
        what it took over may be damaged. False, and nothing done, if it computed all of them
        itself, or has started over before.
        """
        if not row.has_reused or row.started_over:
            return False
        row.started_over = True
        row.cached_tokens = row.fetched_tokens = 0
        for block_id in row.block_ids:
            self.pool.unregister(block_id)
        self._back_to_queue(row)
        return True

    def plan(self) -> StepPlan[S]:
        """Choose the next step."""
        for row in (*self._running, *self._waiting):
            if row.runs_alone:
                return self._plan_alone(row)
        num_preemptions = self.num_preemptions
        imports: list[BlockImport] = []
        chunks = self._plan_decodes()
        prefilling = [row for row in self._running if row.num_uncomputed > 1]
        if num_preemptions == self.num_preemptions:
            prefilling += self._admit(imports)
        chunks += self._plan_prefills(prefilling, self.max_batch_tokens - len(chunks), imports)
        return StepPlan(imports, chunks)

    def commit(self, chunk: Chunk[S]) -> None:
        """The chunk was computed; its full blocks can now be shared."""
        row = chunk.generation
        first = row.num_computed // BLOCK_TOKENS
        row.num_computed += chunk.num_tokens
        if row.has_root:
            for index in range(first, row.num_computed // BLOCK_TOKENS):
                self.pool.register(
                    row.block_ids[index], row.block_hash(index), row.block_tokens(index)
                )

    def check_integrity(self) -> None:
        """Raise AssertionError if the books do not balance: blocks, batch size, queues, keys."""
        self.pool.check_integrity(Counter(b for row in self._running for b in row.block_ids))
        rows = [*self._running, *self._waiting]
        problems = [
            (len(self._running) > self.max_batch_size, f"{len(self._running)} rows run"),
            (
                any(
                    a.rank >= b.rank for q in (self._running, self._waiting) for a, b in pairwise(q)
                ),
                "a queue is out of order",
            ),
            (
                any(row.block_ids or row.num_computed for row in self._waiting),
                "one waits in blocks",
            ),
            (
                any(len(row.block_ids) < _blocks_for(row.num_computed) for row in self._running),
                "tokens without a block",
            ),
            (
                len(rows) != len(self._by_key) or {row.key for row in rows} != set(self._by_key),
                "keys and rows differ",
            ),
        ]
        for broken, text in problems:
            if broken:
                raise AssertionError(text)

    def _plan_alone(self, row: S) -> StepPlan[S]:
        imports: list[BlockImport] = []
        while not row.block_ids and not self._try_admit(row, imports):
            self._preempt(self._running[-1])  # the pool is large enough for it, `add` has seen
        chunks = self._plan_prefills([row], self.max_batch_tokens, imports)
        return StepPlan(imports, chunks)

    # 1. decode

    def _plan_decodes(self) -> list[Chunk[S]]:
        chunks: list[Chunk[S]] = []
        index = 0
        while index < len(self._running):  # preempted rows leave it at its end
            row = self._running[index]
            if row.num_uncomputed == 1 and self._has_room_for_next(row):
                chunks.append(Chunk(row, 1, needs_logits=True))
            index += 1
        return chunks

    def _has_room_for_next(self, row: S) -> bool:
        """Give the row a block for its next token if it needs one; False if it was preempted."""
        if row.num_computed < len(row.block_ids) * BLOCK_TOKENS:
            return True
        while not self.pool.num_available:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is row:
                return False
        row.block_ids.append(self.pool.allocate())
        return True

    def _preempt(self, row: S) -> None:
        self.num_preemptions += 1
        self._back_to_queue(row)

    def _back_to_queue(self, row: S) -> None:
        self._running.remove(row)
        self._release_blocks(row)
        row.num_preemptions += 1
        bisect.insort(self._waiting, row, key=_rank)

    def _release_blocks(self, row: S) -> None:
        for block_id in reversed(row.block_ids):  # the end of a prefix is evicted before its start
            self.pool.release(block_id)
        row.block_ids.clear()
        row.num_computed = 0
        row.has_reused = False

    # 2. admission

    def _admit(self, imports: list[BlockImport]) -> list[S]:
        admitted: list[S] = []
        while self._waiting and self._try_admit(row := self._waiting[0], imports):
            admitted.append(row)
        return admitted

    def _try_admit(self, row: S, imports: list[BlockImport]) -> bool:
        if len(self._running) >= self.max_batch_size or not self._try_take_blocks(row):
            return False
        self._waiting.remove(row)
        bisect.insort(self._running, row, key=_rank)
        if row.has_root and not row.num_preemptions:
            self.prefix_cache.queried += row.num_prompt_tokens
        self._skip_known(row, imports)
        row.drop_fetched()
        return True

    def _try_take_blocks(self, row: S) -> bool:
        """Take the blocks of all known tokens, shared ones first; False, and nothing taken, if they
        are not there now.
        """
        shared = self._cached_prefix(row)
        num_new = _blocks_for(row.num_tokens) - len(shared)
        num_available = self.pool.num_available - sum(map(self.pool.is_idle, shared))
        if num_new + len(self._running) > num_available:
            return False
        for block_id in shared:
            self.pool.hold(block_id)
            row.block_ids.append(block_id)
            self._count_hit(row, is_fetched=False)
        row.block_ids.extend(self.pool.allocate() for _ in range(num_new))
        return True

    def _cached_prefix(self, row: S) -> list[int]:
        """The blocks of its known tokens that are here; never all, so that one token at least is
        computed.
        """
        found: list[int] = []
        if row.has_root:
            for index in range((row.num_tokens - 1) // BLOCK_TOKENS):
                block_id = self.pool.find(row.block_hash(index), row.block_tokens(index))
                if block_id is None:
                    break
                found.append(block_id)
        return found

    # 3. prefill

    def _plan_prefills(
        self, prefilling: list[S], budget_tokens: int, imports: list[BlockImport]
    ) -> list[Chunk[S]]:
        if not prefilling or budget_tokens == 0:
            return []
        for row in prefilling:
            self._skip_known(row, imports)
        first = min(prefilling, key=_rank)
        first_tokens = min(first.num_uncomputed, -(-budget_tokens // 2))
        budget_tokens -= first_tokens
        chunks: list[Chunk[S]] = []
        for row in sorted(prefilling, key=_shortest_first):
            own_tokens = first_tokens if row is first else 0
            more_tokens = min(row.num_uncomputed - own_tokens, budget_tokens)
            budget_tokens -= more_tokens
            num_tokens = own_tokens + more_tokens
            if num_tokens:
                chunks.append(Chunk(row, num_tokens, num_tokens == row.num_uncomputed))
        return chunks

    def _skip_known(self, row: S, imports: list[BlockImport]) -> None:
        """Go on behind the next full blocks that need not be computed: they came with the request,
        or another row has computed them since this one was admitted.
        """
        if not row.has_root or row.num_computed % BLOCK_TOKENS:
            return
        for index in range(row.num_computed // BLOCK_TOKENS, (row.num_tokens - 1) // BLOCK_TOKENS):
            known = self.pool.find(row.block_hash(index), row.block_tokens(index))
            data = None if known is not None else row.fetched_data(index)
            own = row.block_ids[index]
            if known is not None:
                self.pool.hold(known)
                self.pool.release(own)
                row.block_ids[index] = known
            elif data is not None:
                imports.append(BlockImport(own, data))
                self.pool.register(own, row.block_hash(index), row.block_tokens(index))
            else:
                return
            self._count_hit(row, is_fetched=data is not None)

    def _count_hit(self, row: S, *, is_fetched: bool) -> None:
        """The next block of the row need not be computed."""
        before = min(row.num_computed, row.num_prompt_tokens)
        row.num_computed += BLOCK_TOKENS
        row.has_reused = True
        if row.num_preemptions:
            return
        num_tokens = min(row.num_computed, row.num_prompt_tokens) - before
        row.cached_tokens += num_tokens
        if is_fetched:
            row.fetched_tokens += num_tokens
            self.prefix_cache.fetched_hits += num_tokens
        else:
            self.prefix_cache.local_hits += num_tokens


def _blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


def _rank(row: TokenSequence) -> tuple[bool, int, int]:
    return row.rank


def _shortest_first(row: TokenSequence) -> tuple[int, int, int]:
    return (-row.priority, row.num_uncomputed, row.rank[2])
