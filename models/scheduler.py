"""Which generations run in the next step, and how many tokens of each.

Plain Python over plain counts: no tensors, no clock, no threads. One owner calls it, from one
thread.
"""

import bisect
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.models.request import EngineError, EngineErrorCode


class Schedulable(Protocol):
    """What the scheduler has to know of a generation."""

    @property
    def key(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and generated."""

    @property
    def num_computed(self) -> int:
        """How many of them are in the KV cache."""

    @property
    def max_total_tokens(self) -> int:
        """Tokens it may have in the end."""


G = TypeVar("G", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[G]):
    """The next `num_tokens` tokens of one generation, to be computed in one step."""

    generation: G
    num_tokens: int

    @property
    def needs_logits(self) -> bool:
        """Whether the chunk reaches the last known token, so that the next one can be sampled."""
        return self.generation.num_computed + self.num_tokens == self.generation.num_tokens


class Scheduler(Generic[G]):
    """Continuous batching: running generations decode each step; prompts are prefilled in chunks
    beside them.

    Waiting ones are admitted by priority, then by arrival, never out of that order. Admission
    reserves the KV tokens that a generation may need in the end, so that none has to be stopped
    half-way for want of memory.
    """

    def __init__(self, *, max_batch_size: int, max_batch_tokens: int, kv_pool_tokens: int) -> None:
        if not 1 <= max_batch_size <= max_batch_tokens:
            raise ValueError(
                f"max_batch_size is {max_batch_size}, must be in 1...{max_batch_tokens}"
                " (max_batch_tokens)"
            )
        if kv_pool_tokens < 1:
            raise ValueError("the KV pool has no room for a single token")
        self.max_batch_size = max_batch_size
        self.max_batch_tokens = max_batch_tokens
        self.kv_pool_tokens = kv_pool_tokens
        self.num_reserved_tokens = 0
        self._waiting: list[tuple[tuple[int, int], G]] = []  # kept sorted by (-priority, arrival)
        self._running: dict[str, G] = {}  # in the order of admission
        self._num_arrived = 0

    @property
    def num_waiting(self) -> int:
        """Generations that are not admitted yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Generations that hold KV cache."""
        return len(self._running)

    def add(self, generation: G) -> None:
        """Put a generation into the queue.

        Raises: EngineError (out_of_memory) if the whole pool is too small for it.
        """
        if generation.max_total_tokens > self.kv_pool_tokens:
            raise EngineError(
                EngineErrorCode.OUT_OF_MEMORY,
                f"needs {generation.max_total_tokens} tokens of KV cache,"
                f" the pool has {self.kv_pool_tokens}",
            )
        rank = (-generation.priority, self._num_arrived)
        self._num_arrived += 1
        bisect.insort(self._waiting, (rank, generation), key=lambda entry: entry[0])

    def remove(self, key: str) -> None:
        """Forget a generation, waiting or running, and free its reservation; an unknown key has no
        effect.
        """
        generation = self._running.pop(key, None)
        if generation is not None:
            self.num_reserved_tokens -= generation.max_total_tokens
        else:
            self._waiting = [entry for entry in self._waiting if entry[1].key != key]

    def plan(self) -> list[Chunk[G]]:
        """Admit what fits and return the next step: decoding rows first, then prefill in the order
        of admission.
        """
        self._admit()
        decoding = [row for row in self._running.values() if row.num_tokens - row.num_computed == 1]
        prefilling = [
            row for row in self._running.values() if row.num_tokens - row.num_computed > 1
        ]
        chunks = [Chunk(row, 1) for row in decoding]
        budget_tokens = self.max_batch_tokens - len(chunks)
        for row in prefilling:
            num_tokens = min(row.num_tokens - row.num_computed, budget_tokens)
            if num_tokens == 0:
                break
            chunks.append(Chunk(row, num_tokens))
            budget_tokens -= num_tokens
        return chunks

    def check_integrity(self) -> None:
        """Raise AssertionError if the books do not balance: reserved tokens, batch size, queue
        order, distinct keys.
        """
        reserved = sum(row.max_total_tokens for row in self._running.values())
        ranks = [rank for rank, _ in self._waiting]
        keys = [*self._running, *(row.key for _, row in self._waiting)]
        problems = [
            (
                reserved != self.num_reserved_tokens,
                f"reserved {self.num_reserved_tokens}, rows need {reserved}",
            ),
            (
                reserved > self.kv_pool_tokens,
                f"reserved {reserved} of {self.kv_pool_tokens} tokens",
            ),
            (len(self._running) > self.max_batch_size, f"{len(self._running)} rows run"),
            (ranks != sorted(ranks), "the queue is out of order"),
            (len(keys) != len(set(keys)), "a key is there twice"),
        ]
        for broken, text in problems:
            if broken:
                raise AssertionError(text)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_batch_size:
            _, generation = self._waiting[0]
            if self.num_reserved_tokens + generation.max_total_tokens > self.kv_pool_tokens:
                return
            del self._waiting[0]
            self._running[generation.key] = generation
            self.num_reserved_tokens += generation.max_total_tokens
