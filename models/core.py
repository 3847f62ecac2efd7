"""The engine without its thread: the queue, the running generations, and one step at a time.

All its methods are called by one thread, which the core does not know.
"""

import logging
import time
from collections.abc import Sequence

from headrace.models.batch import StepRunner
from headrace.models.generation import Generation
from headrace.models.inbox import Action, Command
from headrace.models.request import (
    EngineError,
    EngineErrorCode,
    EngineOutput,
    FinishReason,
    KVBlock,
)
from headrace.models.scheduler import Chunk, Scheduler
from headrace.models.step import StepExecutor, StepResult

logger = logging.getLogger(__name__)


class EngineCore:
    """Applies commands, runs steps, and collects the outputs of both, in order."""

    def __init__(self, scheduler: Scheduler[Generation], runner: StepRunner) -> None:
        self._scheduler, self._runner = scheduler, runner
        self._executor = StepExecutor(runner)
        self._generations: dict[str, Generation] = {}  # waiting or running
        self._outputs: list[tuple[Generation, EngineOutput]] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to run."""
        return not self._generations

    def apply(self, commands: Sequence[Command]) -> None:
        """Carry out the commands in order; those for generations that ended have no effect."""
        for command in commands:
            generation = command.generation
            if command.action is Action.ADD:
                self._add(generation)
            elif self._generations.get(generation.key) is generation:
                if command.action is Action.CANCEL:
                    self._emit(generation, generation.end(time.monotonic(), FinishReason.CANCELLED))
                elif command.action is Action.SHARE:
                    generation.runs_alone = False
                else:
                    self._forget(generation)

    def step(self) -> None:
        """Schedule, run, sample, emit: at most one new token for each running generation."""
        self._expire(time.monotonic())
        plan = self._scheduler.plan()
        for block in plan.imports:
            self._runner.write_block(block.block_id, block.data)
        if not plan.chunks:
            return
        started_s = time.monotonic()
        for chunk in plan.chunks:
            chunk.generation.schedule(started_s)
        results = self._executor.execute(plan.chunks)
        now_s = time.monotonic()
        for chunk, result in zip(plan.chunks, results, strict=True):
            self._accept(chunk, result, now_s)

    def export(self, hashes: Sequence[bytes]) -> list[KVBlock | None]:
        """Copies of the blocks of these names; None where one is not in the pool (any more)."""
        found = map(self._scheduler.pool.find_by_hash, hashes)
        return [
            None
            if block is None
            else KVBlock(name, block.token_ids, self._runner.read_block(block.block_id))
            for name, block in zip(hashes, found, strict=True)
        ]

    def take_outputs(self) -> list[tuple[Generation, EngineOutput]]:
        """The outputs since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _add(self, generation: Generation) -> None:
        if generation.finish_reason is not None:  # an earlier run came to the end
            self._emit(generation, generation.end(time.monotonic()))
            return
        try:
            self._scheduler.add(generation)
        except EngineError as error:
            self._emit(generation, generation.fail(error, time.monotonic()))
            return
        self._generations[generation.key] = generation

    def _expire(self, now_s: float) -> None:
        """End the generations whose prefill has not begun by their deadline."""
        overdue = [one for one in self._generations.values() if one.is_overdue(now_s)]
        for generation in overdue:
            error = EngineError(EngineErrorCode.EXPIRED, "not started in time", is_refusal=True)
            self._emit(generation, generation.fail(error, now_s))

    def _accept(self, chunk: Chunk[Generation], result: StepResult, now_s: float) -> None:
        generation = chunk.generation
        if isinstance(result, EngineError):
            if self._starts_over(generation, result):
                return
            self._emit(generation, generation.fail(result, now_s))
            return
        self._scheduler.commit(chunk)
        if result is not None:
            self._emit(generation, generation.accept(result, now_s))

    def _starts_over(self, generation: Generation, error: EngineError) -> bool:
        """Whether blocks that others computed may be the reason: then it is computed again."""
        is_suspect = error.code is EngineErrorCode.NUMERICAL_ERROR
        if not is_suspect or not self._scheduler.try_start_over(generation):
            return False
        logger.warning("logits that are not finite over reused KV blocks: computing them again")
        return True

    def _emit(self, generation: Generation, output: EngineOutput) -> None:
        self._outputs.append((generation, output))
        if output.is_last:
            has_run = output.error is not None and output.error.code is not EngineErrorCode.EXPIRED
            self._forget(generation, failed=has_run)

    def _forget(self, generation: Generation, *, failed: bool = False) -> None:
        self._scheduler.remove(generation.key, failed=failed)
        self._generations.pop(generation.key, None)
