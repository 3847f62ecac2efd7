"""The load clients of bench_gateway, a process of its own with thousands of lean sockets.

It obeys one JSON line on stdin at a time, `{"do": "open", …}`, and answers with one JSON line. A
timer of its own notices when this process, and not the gateway, is late.
"""

import asyncio
import sys
from collections import Counter
from typing import Any

import orjson

from benchmarks.lib.figures import percentile
from benchmarks.lib.gateway_socket import LeanSocket

OPENED_AT_ONCE = 50
RESUMED_AT_ONCE = 10
TIMEOUT_S = 60.0
READ_ON_S = 10.0
"""For what was sent to be read, by those that had stopped."""
TICK_S = 0.01


class Clients:
    """The sockets, in two groups: those that read, and those that will not."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self._host, self._port, self._path = host, port, path
        self._readers: list[LeanSocket] = []
        self._wedged: list[LeanSocket] = []
        self._numbers: list[int] = []
        self._at_ms: list[float] = []
        self._late_ms: list[float] = []

    def on_event(self, number: int, at_ms: float) -> None:
        """Note an arrival."""
        self._numbers.append(number)
        self._at_ms.append(at_ms)

    async def watch_lateness(self) -> None:
        """How late this process's own timers are, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._late_ms.append(1000 * (loop.time() - due_s))

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """One order."""
        do = order.pop("do")
        found: dict[str, Any] = await getattr(self, f"do_{do}")(**order)
        return found

    async def do_open(self, sessions: list[str], wedged: bool) -> dict[str, Any]:
        """One socket per session name, subscribed."""
        group = self._wedged if wedged else self._readers
        for start in range(0, len(sessions), OPENED_AT_ONCE):
            some = sessions[start : start + OPENED_AT_ONCE]
            async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
                tried = [tasks.create_task(self._open(name, wedged=wedged)) for name in some]
            group += [one.result() for one in tried]
        return {"open": len(group)}

    async def _open(
        self, session: str, *, wedged: bool = False, cursor: str | None = None
    ) -> LeanSocket:
        loop = asyncio.get_running_loop()
        on_event = None if wedged else self.on_event
        _, socket = await loop.create_connection(
            lambda: LeanSocket(self._path, on_event), self._host, self._port
        )
        await socket.opened
        place = {"cursor": cursor} if cursor else {}
        socket.send(type="subscribe", session_id=session, **place)
        socket.send(type="ping")
        await socket.answered
        return socket

    async def do_wedge(self) -> dict[str, Any]:
        """The wedged ones stop reading."""
        for socket in self._wedged:
            socket.stop_reading()
        return {}

    async def do_collect(self) -> dict[str, Any]:
        """What came since the last time, and how late this process was."""
        found = {
            "numbers": self._numbers,
            "at_ms": self._at_ms,
            "late_ms_p99": percentile(self._late_ms, 99) if self._late_ms else 0.0,
            "late_ms_max": max(self._late_ms, default=0.0),
            "readers_lost": sum(one.closed.done() for one in self._readers),
        }
        self._numbers, self._at_ms, self._late_ms = [], [], []
        return found

    async def do_unwedge(self) -> dict[str, Any]:
        """The wedged ones read on; what they find at the end of what was sent."""
        for socket in self._wedged:
            socket.read_again()
        await asyncio.wait({one.closed for one in self._wedged}, timeout=READ_ON_S)
        return {"close_codes": Counter(str(one.close_code) for one in self._wedged)}

    async def do_resume(self, session: str, count: int) -> dict[str, Any]:
        """Some that were closed go on from their cursors; how many got the very next event."""
        closed = [one for one in self._wedged if one.closed.done() and one.last_event][:count]
        good = 0
        for start in range(0, len(closed), RESUMED_AT_ONCE):
            async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
                some = closed[start : start + RESUMED_AT_ONCE]
                tried = [tasks.create_task(self._goes_on(one, session)) for one in some]
            good += sum(one.result() for one in tried)
        return {"asked_to_resume": len(closed), "resumed": good}

    async def _goes_on(self, lost: LeanSocket, session: str) -> bool:
        cursor, number = lost.place(lost.last_event)
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_event(_number: int, _at_ms: float) -> None:
            if not first.done():
                first.set_result(None)

        _, socket = await asyncio.get_running_loop().create_connection(
            lambda: LeanSocket(self._path, on_event), self._host, self._port
        )
        await socket.opened
        socket.send(type="subscribe", session_id=session, cursor=cursor)
        await first
        socket.abort()
        return socket.place(socket.first_event)[1] == number + 1

    async def do_close(self) -> dict[str, Any]:
        """All sockets go away."""
        for socket in (*self._readers, *self._wedged):
            socket.abort()
        self._readers, self._wedged = [], []
        return {}


async def main(host: str, port: str, path: str) -> None:
    clients = Clients(host, int(port), path)

    async def obey() -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(orjson.dumps(await clients.obey(orjson.loads(line))).decode(), flush=True)
        watching.cancel()

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(clients.watch_lateness())
        print("{}", flush=True)  # ready
        tasks.create_task(obey())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
