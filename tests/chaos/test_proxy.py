"""The proxy of the chaos runs: it holds back, delays and cuts what goes through it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import RedisProxy
from tests.fakes import end_server


@asynccontextmanager
async def through_proxy() -> AsyncIterator[
    tuple[RedisProxy, asyncio.StreamReader, asyncio.StreamWriter]
]:
    """A proxy before a server that sends everything back, and a connection through it."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with RedisProxy("127.0.0.1", port).listening() as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, reader, writer
        writer.close()
    await end_server(server, writers)


async def test_it_passes_bytes_on_both_ways() -> None:
    """In order."""
    async with through_proxy() as (_, reader, writer):
        for data in (b"one", b"two"):
            writer.write(data)
        assert await reader.readexactly(6) == b"onetwo"


async def test_latency_counts_for_each_direction() -> None:
    """0.1 s there and 0.1 s back."""
    async with through_proxy() as (proxy, reader, writer):
        proxy.latency_s = 0.1
        begun_s = time.monotonic()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert 0.2 <= time.monotonic() - begun_s < 2.0


async def test_what_was_held_goes_on_when_it_flows_again() -> None:
    """Silent, it takes bytes and answers nothing."""
    async with through_proxy() as (proxy, reader, writer):
        proxy.silence()
        writer.write(b"x")
        answer = asyncio.ensure_future(reader.readexactly(1))
        done, _ = await asyncio.wait([answer], timeout=0.1)
        assert not done
        proxy.flow()
        assert await answer == b"x"


async def test_a_cut_resets_what_is_open_and_what_is_new() -> None:
    """Until it flows again."""
    async with through_proxy() as (proxy, reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.refuse()
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        refused, _ = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionError):
            await refused.readexactly(1)
        proxy.flow()
        again_reader, again = await asyncio.open_connection("127.0.0.1", proxy.port)
        again.write(b"y")
        assert await again_reader.readexactly(1) == b"y"
        again.close()
