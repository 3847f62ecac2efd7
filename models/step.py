"""One step over the scheduled chunks, so that a chunk that fails takes no other with it.

It owns the KV caches of the running generations. It does not know the queue, the text, or when a
generation ends.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

from headrace.models.generation import Generation
from headrace.models.kv_cache import KVLayout, RowCache
from headrace.models.request import EngineError, EngineErrorCode
from headrace.models.runner import RowInput
from headrace.models.sampler import SampleRow, sample
from headrace.models.scheduler import Chunk

logger = logging.getLogger(__name__)

StepResult = int | EngineError | None
"""The next token of a chunk, or its error, or None where only a part of the prompt was computed."""


class StepRunner(Protocol):
    """Computes rows; see `runner.Runner`."""

    @property
    def layout(self) -> KVLayout: ...

    def run(self, rows: Sequence[RowInput]) -> torch.Tensor: ...


class StepExecutor:
    """Runs chunks of generations and samples their next tokens."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._caches: dict[str, RowCache] = {}

    @property
    def num_cached_rows(self) -> int:
        """Generations that hold KV cache memory."""
        return len(self._caches)

    def execute(self, chunks: Sequence[Chunk[Generation]]) -> list[StepResult]:
        """Run the chunks as one batch; if that raises, in halves, until each failing chunk stands
        alone.

        Raises: torch.AcceleratorError, after which the device cannot be used any more.
        """
        try:
            return self._run(chunks)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            if len(chunks) == 1:
                return [_as_engine_error(error)]
        middle = len(chunks) // 2
        return [*self.execute(chunks[:middle]), *self.execute(chunks[middle:])]

    def free(self, key: str) -> None:
        """Drop the KV cache of a generation that ended; an unknown key has no effect."""
        self._caches.pop(key, None)

    def _run(self, chunks: Sequence[Chunk[Generation]]) -> list[StepResult]:
        rows = [
            RowInput(
                self._cache(chunk.generation),
                chunk.generation.next_ids(chunk.num_tokens),
                chunk.needs_logits,
            )
            for chunk in chunks
        ]
        logits = self._runner.run(rows)
        sampled = iter(
            sample(
                logits, [_sample_row(chunk.generation) for chunk in chunks if chunk.needs_logits]
            )
        )
        results = [next(sampled) if chunk.needs_logits else None for chunk in chunks]
        for chunk in chunks:
            chunk.generation.num_computed += chunk.num_tokens
        return results

    def _cache(self, generation: Generation) -> RowCache:
        cache = self._caches.get(generation.key)
        if cache is None:
            cache = RowCache(self._runner.layout, generation.max_total_tokens)
            self._caches[generation.key] = cache
        cache.truncate(
            generation.num_computed
        )  # a batch that failed after its forward pass is run again
        return cache


def _sample_row(generation: Generation) -> SampleRow:
    request = generation.request
    return SampleRow(request.sampling, request.prompt_ids, generation.generated_ids)


def _as_engine_error(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    is_memory = isinstance(
        error, MemoryError | torch.OutOfMemoryError
    ) or "not enough memory" in str(error)
    code = EngineErrorCode.OUT_OF_MEMORY if is_memory else EngineErrorCode.INTERNAL_ERROR
    logger.error("a generation failed with %s", code, exc_info=error)
    wrapped = EngineError(code, f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error.with_traceback(None)  # the frames would keep the step's tensors alive
    return wrapped
