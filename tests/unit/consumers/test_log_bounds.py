"""Questions that are asked once for many."""

import asyncio

import pytest

from headrace.consumers.log_bounds import Shared
from headrace.schemas.errors import UnavailableError


class SlowAnswers:
    """Answers with the number of the question, when it is let."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.open = asyncio.Event()
        self.problem: UnavailableError | None = None

    async def ask(self) -> int:
        self.num_asked += 1
        number = self.num_asked
        await self.open.wait()
        if self.problem is not None:
            raise self.problem
        return number


async def test_a_thousand_askers_cost_two_questions() -> None:
    """The first has its own; all others one that was begun after they asked."""
    answers = SlowAnswers()
    shared = Shared(answers.ask)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(shared.ask())
        await asyncio.sleep(0)
        others = [tasks.create_task(shared.ask()) for _ in range(999)]
        await asyncio.sleep(0)
        answers.open.set()
    assert first.result() == 1
    assert {task.result() for task in others} == {2}


async def test_an_answer_that_failed_is_shared_too() -> None:
    """No queue of askers that each wait for the same timeout."""
    answers = SlowAnswers()
    answers.problem = UnavailableError("Kafka", 10.0)
    shared = Shared(answers.ask)
    tasks = [asyncio.create_task(shared.ask()) for _ in range(50)]
    await asyncio.sleep(0)
    answers.open.set()
    await asyncio.wait(tasks)
    assert {type(task.exception()) for task in tasks} == {UnavailableError}
    assert answers.num_asked == 2


async def test_an_asker_that_leaves_takes_no_answer_from_the_others() -> None:
    """Cancelled in mid-question; the next one asks for itself."""
    answers = SlowAnswers()
    shared = Shared(answers.ask)
    first = asyncio.create_task(shared.ask())
    await asyncio.sleep(0)
    second = asyncio.create_task(shared.ask())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    answers.open.set()
    assert await second == 2
    with pytest.raises(asyncio.CancelledError):
        await first
