"""One step over the scheduled chunks, so that a chunk that fails takes no other with it.

It does not know the queue, the blocks' owners, the text, or when a generation ends.
"""

import logging
from collections.abc import Sequence

import torch

from headrace.models.batch import RowInput, StepLogits, StepRunner, Wanted
from headrace.models.generation import Generation
from headrace.models.request import EngineError, EngineErrorCode
from headrace.models.sampler import SampleRow, sample
from headrace.models.scheduler import Chunk

logger = logging.getLogger(__name__)

StepResult = int | EngineError | None
"""The next token of a chunk, or its error, or None where only a part of the prompt was computed."""


class StepExecutor:
    """Runs chunks of generations and chooses their next tokens."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

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

    def _run(self, chunks: Sequence[Chunk[Generation]]) -> list[StepResult]:
        rows = [_row_input(chunk) for chunk in chunks]
        step = self._runner.run(rows)
        asking = [chunk.generation for chunk in chunks if chunk.needs_logits]
        tokens = iter(_tokens(step, asking))
        return [next(tokens) if chunk.needs_logits else None for chunk in chunks]


def _row_input(chunk: Chunk[Generation]) -> RowInput:
    generation = chunk.generation
    return RowInput(
        generation.block_ids,
        generation.num_computed,
        generation.next_ids(chunk.num_tokens),
        generation.wanted if chunk.needs_logits else Wanted.NOTHING,
    )


def _tokens(step: StepLogits, asking: Sequence[Generation]) -> list[int | EngineError]:
    """The next token of each generation that asked for one."""
    results: list[int | EngineError] = [
        token if is_finite else _not_finite()
        for token, is_finite in zip(step.greedy_ids, step.is_finite, strict=True)
    ]
    sampled = [index for index, one in enumerate(asking) if one.wanted is Wanted.LOGITS]
    places = [place for place, index in enumerate(sampled) if step.is_finite[index]]
    if places:
        logits = step.logits if len(places) == len(sampled) else step.logits[places]
        chosen = sample(logits, [_sample_row(asking[sampled[place]]) for place in places])
        for place, token in zip(places, chosen, strict=True):
            results[sampled[place]] = token
    return results


def _sample_row(generation: Generation) -> SampleRow:
    request = generation.request
    return SampleRow(
        request.sampling, request.prompt_ids, generation.generated_ids, generation.constraint
    )


def _not_finite() -> EngineError:
    return EngineError(EngineErrorCode.NUMERICAL_ERROR, "the model gave logits that are not finite")


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
