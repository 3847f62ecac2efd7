"""A Redis of one process that runs the project's own scripts, one at a time, in Lua 5.1.

Strings, hashes, sets and times to live: what the scripts of `streams/lua.py` use. A command that is
not here fails by name. `test_mini_redis.py` holds it to a real one.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from lupa import lua51  # type: ignore[import-untyped]
from redis.exceptions import NoScriptError

from headrace.streams import lua

Value = bytes | dict[bytes, bytes] | set[bytes]
Argument = bytes | str | int


@cache
def _runtime() -> Any:
    return lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)


class _Asked:
    """Whose script runs now. NOTE: a Lua table for each would be a cycle that nobody collects."""

    redis: "MiniRedis"


@cache
def _redis_table() -> Any:
    def call(name: bytes, *args: Any) -> Any:
        return _Asked.redis.call(name, *args)

    return _runtime().table_from({b"call": call})


@cache
def _compiled(script: str) -> Any:
    text = "function(redis, KEYS, ARGV)\n" + script + "\nend"
    return _runtime().eval(text.encode())


def sha_of(script: str) -> str:
    """The name under which a script is called."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


class MiniRedis:
    """Keys and scripts. `now_ms` is its clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.values: dict[bytes, Value] = {}
        self._ends_ms: dict[bytes, int] = {}
        self._scripts: dict[str, str] = {}
        for name in dir(lua):
            if name.isupper():
                self.load(getattr(lua, name))

    def load(self, script: str) -> None:
        """SCRIPT LOAD"""
        self._scripts[sha_of(script)] = script

    def evalsha(self, sha: str, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run a script; a NoScriptError is an answer, like in a pipeline."""
        script = self._scripts.get(sha)
        if script is None:
            return NoScriptError("No matching script")
        runtime = _runtime()
        _Asked.redis = self
        found = _compiled(script)(
            _redis_table(),
            runtime.table_from([_bytes(key) for key in keys]),
            runtime.table_from([_bytes(arg) for arg in args]),
        )
        return _reply(found)

    def empty(self) -> None:
        """It was started anew without its data."""
        self.values.clear()
        self._ends_ms.clear()
        self._scripts.clear()

    def copy(self) -> tuple[dict[bytes, Value], dict[bytes, int]]:
        """All that it holds."""
        values = {k: v if isinstance(v, bytes) else v.copy() for k, v in self.values.items()}
        return values, dict(self._ends_ms)

    def put_back(self, saved: tuple[dict[bytes, Value], dict[bytes, int]]) -> None:
        """A replica that was behind has become the master."""
        values, self._ends_ms = saved[0], dict(saved[1])
        self.values = {k: v if isinstance(v, bytes) else v.copy() for k, v in values.items()}

    # commands

    def call(self, name: bytes, *args: Any) -> Any:
        """redis.call"""
        command = getattr(self, "_do_" + name.decode().lower(), None)
        if command is None:
            raise NotImplementedError(f"MiniRedis has no {name.decode()}")
        return command(*[_bytes(arg) for arg in args])

    def _get(self, key: bytes) -> Any:
        end_ms = self._ends_ms.get(key)
        if end_ms is not None and end_ms <= self._now_ms():
            self._do_del(key)
        return self.values.get(key)

    def _hash(self, key: bytes, *, make: bool = False) -> dict[bytes, bytes]:
        found = self._get(key)
        if found is None:
            found = {}
            if make:
                self.values[key] = found
        assert isinstance(found, dict), f"{key!r} is no hash"
        return found

    def _do_get(self, key: bytes) -> Any:
        found = self._get(key)
        return False if found is None else found

    def _do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        self._ends_ms.pop(key, None)
        self.values[key] = value
        if options:
            assert options[0].upper() == b"PX", options
            self._ends_ms[key] = self._now_ms() + int(options[1])
        return _runtime().table_from({b"ok": b"OK"})

    def _do_time(self) -> Any:
        seconds, milliseconds = divmod(self._now_ms(), 1000)
        return _runtime().table_from([b"%d" % seconds, b"%d" % (milliseconds * 1000)])

    def _do_exists(self, *keys: bytes) -> int:
        return sum(self._get(key) is not None for key in keys)

    def _do_del(self, *keys: bytes) -> int:
        num_there = 0
        for key in keys:
            num_there += self.values.pop(key, None) is not None
            self._ends_ms.pop(key, None)
        return num_there

    def _do_pexpire(self, key: bytes, ttl_ms: bytes) -> int:
        if self._get(key) is None:
            return 0
        self._ends_ms[key] = self._now_ms() + int(ttl_ms)
        return 1

    def _do_hget(self, key: bytes, name: bytes) -> Any:
        return self._hash(key).get(name, False)

    def _do_hmget(self, key: bytes, *names: bytes) -> Any:
        found = self._hash(key)
        return _runtime().table_from([found.get(name, False) for name in names])

    def _do_hset(self, key: bytes, *pairs: bytes) -> int:
        assert pairs, "wrong number of arguments for HSET"
        assert len(pairs) % 2 == 0, "wrong number of arguments for HSET"
        found = self._hash(key, make=True)
        num_before = len(found)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(found) - num_before

    def _do_hincrby(self, key: bytes, name: bytes, by: bytes) -> int:
        found = self._hash(key, make=True)
        number = int(found.get(name, b"0")) + int(by)
        found[name] = b"%d" % number
        return number

    def _do_hstrlen(self, key: bytes, name: bytes) -> int:
        return len(self._hash(key).get(name, b""))

    def _do_hexists(self, key: bytes, name: bytes) -> int:
        return int(name in self._hash(key))

    def _do_hgetall(self, key: bytes) -> Any:
        flat = [part for pair in self._hash(key).items() for part in pair]
        return _runtime().table_from(flat)

    def _do_hdel(self, key: bytes, *names: bytes) -> int:
        found = self._hash(key)
        num_there = sum(found.pop(name, None) is not None for name in names)
        if not found:
            self._do_del(key)
        return num_there

    def _do_sadd(self, key: bytes, *members: bytes) -> int:
        found = self._get(key)
        if found is None:
            found = self.values[key] = set()
        num_before = len(found)
        found.update(members)
        return len(found) - num_before

    def _do_sismember(self, key: bytes, member: bytes) -> int:
        return int(member in (self._get(key) or ()))


def _bytes(value: Any) -> bytes:
    """An argument as Redis gets it; Lua's numbers with as many digits as they need."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return b"%d" % int(value) if value.is_integer() else b"%.17g" % value
    assert isinstance(value, int), f"Lua redis lib command arguments must be strings: {value!r}"
    return b"%d" % value


def _reply(value: Any) -> Any:
    """A script's result as a client gets it: numbers are cut to integers, an array ends at nil."""
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, int | float):
        return int(value)
    if isinstance(value, bytes):
        return value
    status = value[b"ok"]
    if status is not None:
        return status
    items = []
    for place in range(1, len(value) + 1):
        if value[place] is None:
            break
        items.append(_reply(value[place]))
    return items
