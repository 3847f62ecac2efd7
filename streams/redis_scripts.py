"""Bounded calls of the Lua scripts: what is asked at the same time shares one round trip, every
failure is an UnavailableError.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from headrace.schemas.errors import UnavailableError
from headrace.schemas.keys import Keys

CALL_TIMEOUT_S = 0.5
"""What a slow or absent Redis may cost a request, once (contract: a miss, then)."""

REACH_TIMEOUT_S = 10.0

RETRY_PAUSE_S = 0.02

_PROBE_INTERVAL_S = 0.1


class Call(NamedTuple):
    """One script call of a pipeline."""

    script: str
    keys: Sequence[str]
    args: Sequence[bytes | str | int]


@dataclass(eq=False, slots=True)
class _Waiting:
    """The calls of one `run`, until they are answered or it is known that they are not."""

    calls: Sequence[Call]
    answers: list[Any] | None = None
    problem: Exception | None = None

    @property
    def is_settled(self) -> bool:
        return self.answers is not None or self.problem is not None


class Scripts:
    """Runs scripts and remembers whether Redis answers.

    One pipeline is under way at a time; what is asked meanwhile goes out with the next one, in the
    order it was asked. Whoever finds none under way sends it, for all that wait.
    """

    def __init__(self, client: "Redis", keys: Keys) -> None:
        self._client, self._probe_key = client, keys.probe
        self._hashes: dict[str, str] = {}
        self._waiting: list[_Waiting] = []
        self._line_is_free = asyncio.Event()
        self._line_is_free.set()
        self.available = asyncio.Event()
        self.available.set()

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """The answers in order; a call that Redis refused answers with its RedisError.

        Calls are carried out after those of every `run` that began before.

        Raises: UnavailableError when there is no answer within CALL_TIMEOUT_S; whether the calls
        were carried out is unknown then, so every script may be repeated.
        Cancel: calls that are not sent yet are not sent. If this one sends, the connection is
        dropped, so that nobody reads its answer, and those of the others are sent again.
        """
        mine = _Waiting(calls)
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while not mine.is_settled:
                    if self._line_is_free.is_set():
                        await self._send_waiting()
                    else:
                        await self._line_is_free.wait()
        except TimeoutError as problem:
            mine.problem = problem
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
        if mine.answers is None:
            self.available.clear()
            raise UnavailableError("Redis", CALL_TIMEOUT_S) from mine.problem
        return mine.answers

    async def _send_waiting(self) -> None:
        """Send all calls that wait as one pipeline, and settle them."""
        batch, self._waiting = self._waiting, []
        self._line_is_free.clear()
        try:
            await self._settle(batch)
        finally:
            self._waiting[:0] = [one for one in batch if not one.is_settled]  # this was cancelled
            self._line_is_free.set()

    async def _settle(self, batch: list[_Waiting]) -> None:
        try:
            answers = iter(await self._answered([call for one in batch for call in one.calls]))
        except (RedisError, OSError) as problem:
            for one in batch:
                one.problem = problem
        else:
            for one in batch:
                one.answers = [next(answers) for _ in one.calls]

    async def _answered(self, calls: Sequence[Call]) -> list[Any]:
        answers = await self._pipeline(calls)
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            again = [calls[i] for i in unknown]
            await self._load(again)
            for i, answer in zip(unknown, await self._pipeline(again), strict=True):
                answers[i] = answer
        return answers

    async def run_one(self, call: Call) -> Any:
        """Like `run`; a refusal (out of memory, loading, read-only) is an UnavailableError too."""
        (answer,) = await self.run([call])
        if isinstance(answer, RedisError):
            self.available.clear()
            raise UnavailableError(f"Redis ({answer})", CALL_TIMEOUT_S) from answer
        return answer

    async def _pipeline(self, calls: Sequence[Call]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(self._hash(call.script), len(call.keys), *call.keys, *call.args)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
        return answers

    async def _load(self, calls: Sequence[Call]) -> None:
        for script in {call.script for call in calls}:
            await self._client.script_load(script)

    def _hash(self, script: str) -> str:
        found = self._hashes.get(script)
        if found is None:
            found = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
            self._hashes[script] = found
        return found

    async def reach(self) -> None:
        """At start: Redis must answer within REACH_TIMEOUT_S. Raises: UnavailableError."""
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                while not await self._answers():  # noqa: ASYNC110 - a probe finds out
                    await asyncio.sleep(_PROBE_INTERVAL_S)
        except TimeoutError as problem:
            raise UnavailableError(f"Redis at {self._address()}", REACH_TIMEOUT_S) from problem

    def _address(self) -> str:
        about = self._client.connection_pool.connection_kwargs
        return str(about.get("path") or f"{about.get('host')}:{about.get('port')}")

    async def back(self) -> None:
        """After an UnavailableError: wait until the call is worth another try."""
        await asyncio.sleep(RETRY_PAUSE_S)  # it may answer, and still refuse
        await self.available.wait()

    async def watch(self) -> None:
        """While Redis is away, ask until it is back. Cancel: safe; runs for ever otherwise."""
        while True:
            await asyncio.sleep(_PROBE_INTERVAL_S)
            if not self.available.is_set() and await self._answers():
                self.available.set()

    async def _answers(self) -> bool:
        """Whether a write is accepted: a full or read-only Redis answers PING, and is of no use."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._client.set(self._probe_key, b"1", px=1000)
        except (RedisError, OSError, TimeoutError):
            return False
        return True


def connect(url: str) -> "Redis":
    """A client for `Scripts`, which bounds every call; one retry replaces a connection gone stale.

    NOTE: no `socket_timeout`. With one, redis-py sends through `asyncio.wait_for`, which loses a
    cancellation that comes just as the send ends (CPython before 3.12, python/cpython#86296).
    """
    return Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=CALL_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        client_name="headrace-worker",
    )
