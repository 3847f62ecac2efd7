r"""What a worker has asked of a service and not been answered: the schedule says what is to come.

asked -> carried out, step by step -> answered
            \-> the answer is lost: the worker sees an error
asked -> refused, nothing is carried out
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.explorer.sim_loop import SimLoop


class Operation:
    """Steps that a service carries out one after the other, and one answer for all of them."""

    def __init__(self, loop: SimLoop, steps: Sequence[Callable[[], Any]]) -> None:
        self._steps = steps
        self._results: list[Any] = []
        self._answer: asyncio.Future[list[Any]] = loop.create_future()

    async def answered(self) -> list[Any]:
        """What the steps gave."""
        return await self._answer

    @property
    def is_carried_out(self) -> bool:
        return len(self._results) == len(self._steps)

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._answer.done()

    def carry_out(self, num_steps: int | None = None) -> None:
        """The service does the next steps; all of them by default."""
        end = len(self._steps) if num_steps is None else len(self._results) + num_steps
        for step in self._steps[len(self._results) : end]:
            self._results.append(step())

    def answer(self) -> None:
        if not self._answer.done():
            self._answer.set_result(self._results)

    def fail(self, problem: Exception) -> None:
        """The worker is told that there is no answer; what was carried out stays so."""
        if not self._answer.done():
            self._answer.set_exception(problem)


class Line:
    """The operations of one worker on their way to one service, in the order they were asked."""

    def __init__(self) -> None:
        self.waiting: list[Operation] = []
        self.late: list[Operation] = []
        """Given up by the worker, not carried out yet: they may still arrive."""

    async def ask(self, loop: SimLoop, steps: Sequence[Callable[[], Any]]) -> list[Any]:
        """Cancel: it is given up, and may be carried out all the same."""
        operation = Operation(loop, steps)
        self.waiting.append(operation)
        try:
            return await operation.answered()
        finally:
            if operation in self.waiting:
                self.waiting.remove(operation)
                if not operation.is_carried_out:
                    self.late.append(operation)

    def next(self) -> Operation | None:
        return self.waiting[0] if self.waiting else None

    def answer(self) -> None:
        """The first operation is carried out, as far as it is not, and answered."""
        operation = self.waiting.pop(0)
        operation.carry_out()
        operation.answer()

    def fail(self, problem: Exception, *, may_arrive: bool) -> None:
        """The first operation gets no answer. `may_arrive`: it is still on its way."""
        operation = self.waiting.pop(0)
        operation.fail(problem)
        if may_arrive and not operation.is_carried_out:
            self.late.append(operation)

    def give_up(self) -> None:
        """Whoever asked is gone."""
        self.late += [one for one in self.waiting if not one.is_carried_out]
        self.waiting.clear()
