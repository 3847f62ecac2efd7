"""The Python client against real gateways and Kafka, behind a proxy that cuts its connections."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace.consumers.context import Bounds
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.processes import free_port
from headrace.deploy.topics import ensure_topics
from headrace.producers import client_answer
from headrace.producers.client import (
    Answer,
    AnswerFailedError,
    Client,
    Completed,
    Event,
    OutOfTouchError,
    RequestError,
    Restarted,
)
from headrace.schemas.errors import ErrorCode
from headrace.schemas.settings import Settings
from tests.chaos.proxy import RedisProxy
from tests.documented import documented
from tests.unit.consumers.doubles import (
    TOPIC_PARTITIONS,
    ResponseWriter,
    ScriptedSink,
    answer,
    overloaded,
)
from tests.unit.consumers.running import serving

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BOUNDS = Bounds(send_s=1.0)
WORDS = [f"w{number} " for number in range(20)]


@dataclass
class Stack:
    """A gateway, a proxy before it, and the scripted worker behind it."""

    settings: Settings
    log: ResponseLog
    events: ResponseWriter
    sink: ScriptedSink
    proxy: RedisProxy
    url: str
    """Past the proxy."""

    @property
    def cut_url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(kafka_bootstrap: str) -> AsyncIterator[Stack]:
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=f"t{uuid4().hex[:12]}")
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    async with (
        ResponseWriter(settings) as events,
        ScriptedSink(events, WORDS) as sink,
        serving(settings, sink, bounds=BOUNDS) as (log, address),
    ):
        host, port = address.split(":")
        async with RedisProxy(host, int(port)).listening() as proxy:
            yield Stack(settings, log, events, sink, proxy, f"http://{address}")


@pytest_asyncio.fixture(loop_scope="module")
async def stack(shared: Stack) -> Stack:
    """The module's stack, as it was at first."""
    sink = shared.sink
    sink.words, sink.pause_s, sink.error, sink.silent = list(WORDS), 0.0, None, False
    sink.submitted.clear()
    sink.cancelled.clear()
    shared.proxy.flow()
    return shared


async def settled(check: Callable[[], Any]) -> None:
    """Wait until `check()` holds."""
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def numbers(events: list[Event]) -> list[int]:
    return [event.sequence_number for event in events]


async def test_an_answer_is_read_event_by_event(stack: Stack) -> None:
    """Its last event says how it went; the request was sent once, with what was asked."""
    async with Client(stack.url) as client:
        reading = client.generate("hi", session_id="s1", max_tokens=9)
        events = [event async for event in reading]
    assert numbers(events) == list(range(20))
    assert text(events) == "".join(WORDS)
    last = events[-1]
    assert isinstance(last, Completed)
    assert (last.finish_reason, last.usage.total_tokens, last.seed) == ("stop", 8, 7)
    assert {event.request_id for event in events} == {reading.request_id}
    (sent,) = stack.sink.submitted
    assert (sent["max_tokens"], sent["session_id"]) == (9, "s1")
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert stack.sink.cancelled == []


async def test_complete_gives_the_whole_answer(stack: Stack) -> None:
    """Text, usage and timings in one; several at once on one socket."""
    async with Client(stack.url) as client:
        found = await asyncio.gather(*(client.complete(f"question {n}") for n in range(5)))
    assert {whole.text for whole in found} == {"".join(WORDS)}
    assert {whole.usage.completion_tokens for whole in found} == {3}
    assert all(sent["stream"] is False for sent in stack.sink.submitted)


async def test_what_is_wrong_is_an_error_of_its_own(stack: Stack, tmp_path: Path) -> None:
    """A bad field before anything is sent; an answer that failed; a key that nobody knows."""
    async with Client(stack.url) as client:
        with pytest.raises(RequestError) as bad:
            client.generate("hi", temperature=9)
        assert (bad.value.code, bad.value.param) == (ErrorCode.INVALID_VALUE, "temperature")
        stack.sink.error = overloaded()
        with pytest.raises(AnswerFailedError) as failed:
            await client.complete("hi", session_id="s2")
        assert (failed.value.code, failed.value.session_id) == (ErrorCode.OVERLOADED, "s2")
    keys = tmp_path / "keys.json"
    keys.write_text('{"key-a": "acme"}')
    settings = stack.settings.model_copy(update={"api_keys_file": keys})
    stack.sink.error = None
    async with serving(settings, stack.sink, bounds=BOUNDS) as (_, address):
        async with Client(f"http://{address}", api_key="nope") as client:
            with pytest.raises(RequestError) as stranger:
                await client.complete("hi")
            assert stranger.value.code is ErrorCode.UNAUTHORIZED
        async with Client(f"http://{address}", api_key="key-a") as client:
            assert (await client.complete("hi")).text == "".join(WORDS)
    assert stack.sink.tenants[-1] == "acme"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cuts_are_not_seen_by_the_application(stack: Stack, seed: int) -> None:
    """However often the connection is cut: no token twice, none lost; several answers at once."""
    stack.sink.pause_s = 0.01
    by_chance = random.Random(seed)

    async def read(client: Client, session: str) -> list[Event]:
        found = []
        async for event in client.generate("hi", session_id=session):
            found.append(event)
            if by_chance.random() < 0.1:
                stack.proxy.cut()
        return found

    async with Client(stack.cut_url) as client, asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(read(client, f"c{seed}-{n}")) for n in range(3)]
    for task in reading:
        assert numbers(task.result()) == list(range(20))
        assert text(task.result()) == "".join(WORDS)
    assert stack.sink.cancelled == []


async def test_a_killed_gateway_is_followed_by_another(stack: Stack) -> None:
    """Three answers go on at the one that is left, from where they were."""
    stack.sink.pause_s = 0.02

    async def read(client: Client, n: int) -> list[Event]:
        return [event async for event in client.generate("hi", session_id=f"k{n}")]

    async with (
        Client(stack.cut_url, stack.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        reading = [tasks.create_task(read(client, n)) for n in range(3)]
        await settled(lambda: len(stack.sink.submitted) == 3)
        stack.proxy.refuse()
    assert {text(task.result()) for task in reading} == {"".join(WORDS)}
    assert all(numbers(task.result()) == list(range(20)) for task in reading)


async def test_a_gateway_that_restarts_is_come_back_to(stack: Stack) -> None:
    """At the same address, in mid-answer; the worker never stopped."""
    stack.sink.pause_s, port = 0.02, free_port()
    found: list[Event] = []
    async with Client(f"http://127.0.0.1:{port}") as client:
        reading = aiter(client.generate("hi", session_id="restarts"))
        for count in (5, 15):
            async with serving(stack.settings, stack.sink, port, bounds=BOUNDS):
                found += [await anext(reading) for _ in range(count)]
        assert await anext(reading, None) is None
    assert numbers(found) == list(range(20))
    assert stack.sink.cancelled == []


async def test_a_gateway_that_is_away_is_waited_for(stack: Stack) -> None:
    """The request is sent once there is one; each is produced under one id."""
    stack.proxy.refuse()
    async with Client(stack.cut_url) as client:
        waiting = asyncio.ensure_future(client.complete("hi"))
        await asyncio.sleep(0.2)
        stack.proxy.flow()
        assert (await waiting).text == "".join(WORDS)
    assert len({sent["request_id"] for sent in stack.sink.submitted}) == 1


@pytest.mark.parametrize("way", ["break", "error", "cancel", "close"])
async def test_leaving_early_cancels_the_generation(stack: Stack, way: str) -> None:
    """However the loop ends; a background one goes on."""
    stack.sink.pause_s = 0.05
    async with Client(stack.url) as client:
        asked = client.generate("hi", session_id=f"l-{way}")
        kept = client.generate("hi", session_id=f"b-{way}", background=True)

        async def read(early: bool) -> None:
            async for _ in asked if early else kept:
                if way == "break":
                    break
                if way == "error":
                    raise LookupError
                if way == "cancel":
                    current = asyncio.current_task()
                    assert current is not None
                    current.cancel()

        if way == "close":
            async with asked, kept:
                await settled(lambda: len(stack.sink.submitted) == 2)
        else:
            ended = await asyncio.gather(
                *(asyncio.create_task(read(early)) for early in (True, False)),
                return_exceptions=True,
            )
            kinds = {"break": type(None), "error": LookupError, "cancel": asyncio.CancelledError}
            assert [type(one) for one in ended] == [kinds[way]] * 2
    assert stack.sink.cancelled == [asked.request_id]


async def test_cancel_is_confirmed_and_told(stack: Stack) -> None:
    """From anywhere; the reader gets the end."""
    stack.sink.pause_s = 0.03
    async with Client(stack.url) as client, client.generate("hi", session_id="s3") as reading:
        await settled(lambda: stack.sink.submitted)
        await client.cancel(reading.request_id, session_id="s3")
        assert stack.sink.cancelled == [reading.request_id]
        assert (await reading.whole()).finish_reason == "cancelled"


async def test_a_larger_attempt_is_an_event(stack: Stack) -> None:
    """`Restarted`, then the new text; also for a reader that resumes behind the change."""
    stack.sink.silent = True
    old, new = (answer("r-restart", "s4", WORDS[:5], attempt=one) for one in (1, 2))
    async with Client(stack.url) as client:
        reading = client.generate("hi", session_id="s4", request_id="r-restart")
        task = asyncio.ensure_future(asyncio.wait_for(_all(reading), 5))
        await settled(lambda: stack.sink.submitted)
        for value in [*old[:3], *new]:
            await stack.events.write(value, session_id="s4", tenant="default")
        events = await task
        late = await _all(client.resume("r-restart", session_id="s4", starting_after=2))
        whole = await client.resume("r-restart", session_id="s4").whole()
    assert [type(event) for event in events[2:5]] == [type(events[0]), Restarted, type(events[0])]
    assert numbers(events) == [0, 1, 2, 0, 0, 1, 2, 3, 4]
    assert isinstance(late[0], Restarted)
    assert text(late) == whole.text == "".join(WORDS[:5])


async def _all(events: AsyncIterator[Event] | Any) -> list[Event]:
    return [event async for event in events]


@pytest.mark.parametrize("place", ["cursor", "number"])
async def test_an_answer_is_resumed_by_another_client(stack: Stack, place: str) -> None:
    """By cursor or number, at any time later; leaving it cancels nothing."""
    async with Client(stack.url) as client, client.generate("hi", session_id="s5") as reading:
        events = await _all(reading)
    where: dict[str, Any] = (
        {"cursor": events[7].cursor} if place == "cursor" else {"starting_after": 7}
    )
    async with Client(stack.url) as client:
        rest = await _all(client.resume(reading.request_id, session_id="s5", **where))
        assert rest == events[8:]
        async for _ in client.resume(reading.request_id, session_id="s5"):
            break
        with pytest.raises(RequestError) as gone:
            await client.resume("nobody", cursor="c1.0.99999").whole()
        assert gone.value.code is ErrorCode.RESUME_GAP
    assert stack.sink.cancelled == []


async def test_an_answer_that_is_not_read_holds_no_other_up(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is parked, and read from the log when its reader comes back; nothing is missing."""
    monkeypatch.setattr(client_answer, "MAX_BUFFERED_EVENTS", 4)
    events: list[Event] = []
    async with Client(stack.url) as client, client.generate("hi", session_id="s6") as slow:
        async for event in slow:
            events.append(event)
            for n in range(3 if len(events) == 1 else 0):
                assert (await client.complete("hi", session_id=f"q{n}")).text == "".join(WORDS)
            if len(events) == 2:
                break  # it is held by the `async with`: its reader comes back
        events += await _all(slow)
    assert numbers(events) == list(range(20))


async def test_a_hundred_answers_at_once(stack: Stack) -> None:
    """More than one socket takes; each reader gets its own."""
    stack.sink.words = ["a ", "b "]
    async with Client(stack.url) as client, asyncio.TaskGroup() as tasks:
        reading = [
            tasks.create_task(_all(client.generate("hi", session_id=f"h{n}"))) for n in range(100)
        ]
    assert [text(task.result()) for task in reading] == ["a b "] * 100


async def test_out_of_touch_holds_the_place(stack: Stack) -> None:
    """A bounded wait, then an error with which another client goes on; nothing is cancelled."""
    stack.sink.pause_s = 0.02
    found: list[Event] = []

    async def read(answer_: Answer) -> None:
        async for event in answer_:
            found.append(event)
            if len(found) == 5:
                stack.proxy.refuse()

    async with Client(stack.cut_url, max_wait_s=0.5) as client:
        reading = client.generate("hi", session_id="s7")
        with pytest.raises(OutOfTouchError, match="resume after c1") as lost:
            await read(reading)
    place = lost.value.place
    assert place == reading.place
    assert place.request_id is not None
    async with Client(stack.url) as client:
        rest = await _all(
            client.resume(place.request_id, session_id=place.session_id, cursor=place.cursor)
        )
    assert numbers(found + rest) == list(range(20))
    assert stack.sink.cancelled == []


async def test_a_session_is_followed_through_cuts(stack: Stack) -> None:
    """Every request of it, whoever asked; from its beginning, and again from a cursor."""
    stack.sink.pause_s = 0.005
    async with Client(stack.url) as asking, Client(stack.cut_url) as client:
        events: list[Event] = []
        await asking.complete("hi", session_id="s8")
        async with aclosing(client.subscribe("s8", from_start=True)) as session:
            tasks = [asyncio.ensure_future(_all(asking.generate("hi", session_id="s8")))]
            async for event in session:
                events.append(event)
                if len(events) in (3, 9, 12):
                    stack.proxy.cut()
                if len(events) == 21:
                    break
        await asyncio.gather(*tasks)
        assert numbers(events) == [0, *range(20)]
        async with aclosing(client.subscribe("s8", cursor=events[5].cursor)) as session:
            again = [await anext(session) for _ in range(15)]
    assert again == events[6:]


@pytest.mark.parametrize("number", range(3))
async def test_the_examples_of_the_documentation_run(
    stack: Stack, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they are printed, but for the address."""
    stack.sink.pause_s = 0.01
    main = documented("headrace.producers.client", number, "http://127.0.0.1:8080", stack.url)
    await main()
    assert "w3 " in capsys.readouterr().out or number == 2
    assert len(stack.sink.cancelled) == (number == 2)
