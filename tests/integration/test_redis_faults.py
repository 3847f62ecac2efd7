"""A Redis that stands still, says nothing, is full, or comes back empty, in mid-sentence."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from headrace.deploy.embedded_valkey import EmbeddedValkey
from tests.faults import MESSAGES, Outage, own_valkey, quick_answer, settings_of, through
from tests.long_answers import LongAnswers
from tests.pipeline import Pipeline, Reply, running_pipeline

pytestmark = [
    pytest.mark.integration,
    pytest.mark.alone,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]

LONG = 1500
AWAY_S = 5.0


class Line:
    """Between worker and Redis: hands bytes on, or cuts what is open and takes new connections
    without ever answering.
    """

    def __init__(self, port: int) -> None:
        self._redis_port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.silent = False

    async def __aenter__(self) -> "Line":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def cut(self) -> None:
        """End every connection that is open."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self.silent:
                await reader.read()
                return
            there = await asyncio.open_connection("127.0.0.1", self._redis_port)
            self._open.add(there[1])
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_hand_on(reader, there[1]))
                    tasks.create_task(_hand_on(there[0], writer))
            finally:
                self._open.discard(there[1])
                there[1].transport.abort()
        except* OSError:
            pass  # either end hung up
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()


@dataclass
class Stage:
    """A Redis of our own, one worker, and what it answers when nothing happens."""

    valkey: EmbeddedValkey
    line: Line
    pipeline: Pipeline
    answers: LongAnswers
    expected: dict[str, Reply]

    @property
    def valkey_pid(self) -> int:
        pid = self.valkey.pid
        assert pid is not None
        return pid


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    kafka_bootstrap: str, slow_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    folder, prefix = tmp_path_factory.mktemp("faults"), f"t{uuid4().hex[:12]}"
    async with own_valkey(folder / "valkey") as valkey, Line(valkey.port) as line:
        settings = settings_of(kafka_bootstrap, line.url, slow_model_dir, prefix)
        async with running_pipeline(settings, folder) as pipeline:
            await pipeline.start_worker()
            answers = LongAnswers(pipeline, MESSAGES, LONG)
            yield Stage(valkey, line, pipeline, answers, await answers.undisturbed())


async def _away(
    stage: Stage,
    name: str,
    leave: Callable[[], Awaitable[None]],
    back: Callable[[], Awaitable[None]],
) -> tuple[Outage, list[float]]:
    """Redis leaves for AWAY_S in mid-sentence; what readers saw, and in what time requests that
    came meanwhile, at once and a second later, had their first event.
    """
    starts_s: list[float] = []

    async def fault() -> None:
        began_s = time.monotonic()
        await leave()
        for number in range(2):
            starts_s.append(await _first_event_s(stage.pipeline, f"{name} {number}"))
            await asyncio.sleep(1)
        await asyncio.sleep(max(0.0, began_s + AWAY_S - time.monotonic()))
        await back()

    outage = await through(stage.answers, name, fault, expected=stage.expected)
    await stage.pipeline.finished([f"{name} {number}" for number in range(2)])
    print(f"{outage}, new requests began after {', '.join(f'{s:.2f}' for s in starts_s)} s")
    return outage, starts_s


async def _first_event_s(pipeline: Pipeline, name: str) -> float:
    body = {"request_id": name, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    began_s = time.monotonic()
    await pipeline.ask(body, key=name)
    await pipeline.until(lambda: bool(pipeline.replies[name].events), timeout_s=AWAY_S)
    return time.monotonic() - began_s


def _assert_short(outage: Outage, starts_s: list[float]) -> None:
    """Whoever asks just as it leaves waits 0.5 s for its claim and 0.3 s for its conversation;
    later ones for their conversation only. The rest is for a busy machine.
    """
    assert outage.pause_s < AWAY_S + 1
    assert max(starts_s) < 1.5


async def test_a_redis_that_stands_still_pauses_what_runs_and_nothing_else(stage: Stage) -> None:
    """SIGSTOP: connections stay open, and nothing comes back."""

    async def leave() -> None:
        os.kill(stage.valkey_pid, signal.SIGSTOP)

    async def back() -> None:
        os.kill(stage.valkey_pid, signal.SIGCONT)

    _assert_short(*await _away(stage, "still", leave, back))


async def test_a_redis_that_takes_connections_and_never_answers(stage: Stage) -> None:
    """Cases J7: what was open is cut, and each new connection is a wait."""

    async def leave() -> None:
        stage.line.silent = True
        stage.line.cut()

    async def back() -> None:
        stage.line.silent = False
        stage.line.cut()

    _assert_short(*await _away(stage, "silent", leave, back))


async def test_a_redis_that_is_full_refuses_writes(stage: Stage) -> None:
    """Cases J2: it answers, and takes nothing."""
    client = Redis.from_url(stage.valkey.url)
    names = ("maxmemory", "maxmemory-policy")
    before = {name: str((await client.config_get(name))[name]) for name in names}

    async def leave() -> None:
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", 1)

    async def back() -> None:
        for name, value in before.items():
            await client.config_set(name, value)

    try:
        _assert_short(*await _away(stage, "full", leave, back))
    finally:
        await back()
        await client.aclose()


async def test_a_redis_that_comes_back_empty_begins_a_larger_attempt(stage: Stage) -> None:
    """The whole text again, under a larger attempt; nothing is computed again."""
    (worker,) = stage.pipeline.workers
    made_before = await worker.metric("headrace_generation_tokens_total")

    async def kill() -> None:
        await asyncio.to_thread(stage.valkey.kill)
        await asyncio.to_thread(stage.valkey.start)

    outage = await through(stage.answers, "emptied", kill, expected=stage.expected, num_attempts=2)
    print(outage)
    made = await worker.metric("headrace_generation_tokens_total") - made_before
    assert made == 2 * LONG
    assert outage.pause_s < outage.lasted_s + 2
    assert await quick_answer(stage.pipeline, "after the emptying") < 3
