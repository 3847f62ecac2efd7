"""One reader of the log, between the loop that fills it and the task that empties it."""

import asyncio

from headrace.consumers.log_event import LogEvent, Wanted
from headrace.consumers.subscription import Subscription

NUM_EVENTS = 1_000


async def nothing(_subscription: Subscription) -> None:
    """Entering needs no log here."""


def filled(count: int) -> Subscription:
    """A subscription for which `count` events wait."""
    wanted = Wanted("default", "s1")
    reader = Subscription(wanted, enter=nothing, leave=lambda _: None)
    for offset in range(count):
        body = {"id": "r1", "session_id": "s1"}
        reader.offer(LogEvent(0, offset, "default", b"s1", body, ()))
    return reader


async def test_a_reader_with_much_to_read_lets_others_have_their_turn() -> None:
    """I2: it reads without a wait, and yet another reader's event comes long before its last."""
    order: list[str] = []

    async def read(name: str, reader: Subscription, count: int) -> None:
        async with reader:
            for _ in range(count):
                await anext(reader)
                order.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read("full", filled(NUM_EVENTS), NUM_EVENTS))
        tasks.create_task(read("other", filled(1), 1))
    assert order.index("other") < 100


async def test_a_reader_that_is_cancelled_at_its_turn_loses_no_event() -> None:
    """Whenever it is cancelled, the next one begins where it was."""
    reader = filled(NUM_EVENTS)
    seen: list[int] = []

    async def read() -> None:
        while True:
            seen.append((await anext(reader)).offset)

    while len(seen) < NUM_EVENTS:
        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    assert seen == list(range(NUM_EVENTS))
