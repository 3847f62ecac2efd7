"""The limit of bench_gateway: the same frames to the same sockets from a bare Starlette endpoint on
uvicorn, without Kafka, subscriptions, or any care for slow readers.
"""

import asyncio
import itertools
import sys
import time
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from benchmarks.lib.gateway_source import TEXT, at_pace, event_of


class Peer:
    """The sockets, by the session that each subscribed to."""

    def __init__(self) -> None:
        self._sockets: dict[str, WebSocket] = {}

    async def endpoint(self, socket: WebSocket) -> None:
        """Take a subscription and a ping, then wait until the client leaves."""
        await socket.accept()
        try:
            self._sockets[(await socket.receive_json())["session_id"]] = socket
            while await socket.receive_text():
                await socket.send_text('{"type":"pong"}')
        except WebSocketDisconnect:
            return

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """As `Source.run`; the times are those at which the frames were made."""
        made_ms: list[float] = []
        turn = itertools.cycle(range(order["sessions"]))

        async def send() -> None:
            index, number = next(turn), len(made_ms)
            made_ms.append(time.time() * 1000)
            event = event_of(f"s{index}", number, number, TEXT).decode()
            frame = f'{{"type":"event","cursor":"c1.{index % 12}.{number}","event":{event}}}'
            await self._sockets[f"s{index}"].send_text(frame)

        began_s = time.monotonic()
        await at_pace(order["per_s"], order["seconds"], send)
        return {"wall_s": time.monotonic() - began_s, "append_ms": made_ms}


async def main(port: str) -> None:
    peer = Peer()
    app = Starlette(routes=[WebSocketRoute("/v1/stream", peer.endpoint)])
    config = uvicorn.Config(
        app, port=int(port), log_config=None, lifespan="off", ws_per_message_deflate=False
    )
    server = uvicorn.Server(config)

    async def obey() -> None:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        print("{}", flush=True)  # ready
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(orjson.dumps(await peer.run(orjson.loads(line))).decode(), flush=True)
        server.should_exit = server.force_exit = True

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(obey())
        tasks.create_task(server.serve())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
