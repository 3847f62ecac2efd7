"""Many sockets on one gateway, some of which never read (cases I1, I2, I6, I8)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from benchmarks.lib.gateway_socket import LeanSocket
from headrace.consumers.gateway import Bounds, build_app
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, ScriptedSink, answer
from tests.unit.consumers.running import running

pytestmark = pytest.mark.integration

NUM_READERS, NUM_WEDGED = 280, 20
BIG = ["x" * 40_000] * 25
"""More than the buffers of client, kernels and gateway take together."""


class Stand:
    """A gateway with short bounds, its log, and the counts that it shows."""

    def __init__(self, log: ResponseLog, events: ResponseWriter, address: str) -> None:
        self.log, self.events, self.address = log, events, address
        self.registry = CollectorRegistry()

    def closed(self, reason: str) -> float | None:
        """Sockets that ended for `reason`."""
        return self.registry.get_sample_value(
            "headrace_gateway_websockets_closed_total", {"reason": reason}
        )

    async def open(self, session_id: str, **place: Any) -> LeanSocket:
        """A socket that follows a session."""
        host, _, port = self.address.partition(":")
        _, socket = await asyncio.get_running_loop().create_connection(
            lambda: LeanSocket("/v1/stream", None), host, int(port)
        )
        await socket.opened
        socket.send(type="subscribe", session_id=session_id, **place)
        socket.send(type="ping")
        await socket.answered
        return socket


@asynccontextmanager
async def standing(
    kafka: str, prefix: str, *, words: list[str] | None = None, **options: Any
) -> AsyncIterator[tuple[Stand, ScriptedSink]]:
    settings = Settings(kafka=kafka, topic_prefix=prefix)
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    log = ResponseLog(settings)
    await log.start()
    try:
        async with (
            ResponseWriter(settings) as events,
            ScriptedSink(events, words or []) as sink,
        ):
            stand = Stand(log, events, "")
            app = build_app(settings, log, sink, registry=stand.registry, bounds=Bounds(send_s=0.5))
            async with running(app, settings, **options) as stand.address:
                yield stand, sink
    finally:
        await log.stop()


async def settled(check: Any) -> None:
    """Wait until `check()` holds."""
    async with asyncio.timeout(15):
        while not check():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


async def test_wedged_sockets_among_many_end_with_1013_and_go_on_elsewhere(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """I1, I2, I8: every reader has every event; each wedged one finds 1013, and its cursor leads to
    the rest, without gap or repeat.
    """
    async with standing(kafka_bootstrap, topic_prefix) as (stand, _):
        async with asyncio.TaskGroup() as tasks:
            opening = [
                tasks.create_task(stand.open(name))
                for name in [f"s{n}" for n in range(NUM_READERS)] + ["hot"] * NUM_WEDGED
            ]
        sockets = [task.result() for task in opening]
        readers, wedged = sockets[:NUM_READERS], sockets[NUM_READERS:]
        for socket in wedged:
            socket.stop_reading()
        for number, value in enumerate(answer("r-hot", "hot", BIG)):
            await stand.events.write(value, session_id="hot")
            if number == 5:  # the wedged ones are full by now: nobody waits for them
                async with asyncio.TaskGroup() as tasks:
                    for n in range(NUM_READERS):
                        (one,) = answer(f"r{n}", f"s{n}", ["word"])
                        tasks.create_task(stand.events.write(one, session_id=f"s{n}"))
        await settled(lambda: all(one.last_event for one in readers))
        await settled(lambda: stand.closed("stalled") == NUM_WEDGED)
        assert stand.log.num_subscriptions == NUM_READERS
        for socket in wedged:
            socket.read_again()
        await settled(lambda: all(one.closed.done() for one in wedged))
        assert {one.close_code for one in wedged} == {1013}
        assert not any(one.closed.done() for one in readers)
        cursor, number = LeanSocket.place(wedged[0].last_event)
        assert number < len(BIG) - 1
        again = await stand.open("hot", cursor=cursor)
        await settled(lambda: again.num_events == len(BIG) - 1 - number)
        assert LeanSocket.place(again.first_event)[1] == number + 1
        assert LeanSocket.place(again.last_event)[1] == len(BIG) - 1
        for socket in (*readers, again):
            socket.abort()
        await settled(lambda: stand.log.num_subscriptions == 0)


async def test_who_answers_pings_stays_and_who_does_not_is_closed(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    """I6: an idle socket is never closed; one whose client stopped reading is, with 1013."""
    pings: dict[str, Any] = {"ws_ping_interval": 0.2, "ws_ping_timeout": 0.5}
    async with standing(kafka_bootstrap, topic_prefix, **pings) as (stand, _):
        idle, silent = await stand.open("s1"), await stand.open("s1")
        silent.stop_reading()
        await settled(lambda: stand.closed("silent") == 1)
        assert stand.log.num_subscriptions == 1
        silent.read_again()
        await silent.closed
        assert silent.close_code == 1013
        assert not idle.closed.done()
        idle.abort()


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_over_http_that_nobody_reads_is_let_go(
    kafka_bootstrap: str, topic_prefix: str, background: bool
) -> None:
    """I1 for HTTP: its generation is cancelled unless it runs in the background."""
    async with standing(kafka_bootstrap, topic_prefix, words=BIG * 4) as (stand, sink):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        data = orjson.dumps(body | {"background": background, "request_id": "r1"})
        reader, writer = await asyncio.open_connection(*stand.address.split(":"), limit=1024)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"\r\n" + data)
        await reader.readline()  # the rest fills its buffer, and it stops reading
        await settled(lambda: stand.log.num_subscriptions == 1)
        await settled(lambda: stand.log.num_subscriptions == 0)
        assert sink.cancelled == ([] if background else ["r1"])
        async with httpx.AsyncClient(base_url=f"http://{stand.address}") as http:
            assert (await http.get("/healthz")).status_code == 200
        writer.transport.abort()
