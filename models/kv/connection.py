"""A Redis connection for large values: received straight into buffers, sent without copies.

redis-py connects (TLS, login, database, unix sockets); the few commands of the block store are
written and read here: it is faster, a chain that breaks off costs little, and each exchange has one
deadline, however slowly its bytes come (docs/decisions/005-kv-in-redis.md).
"""

import io
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from headrace.models.kv.buffers import BufferPool
from headrace.schemas.errors import UnavailableError

IN_FLIGHT = 4
"""Values asked for ahead: the next ones come in while one is checked, and a chain that breaks off
has cost little.
"""

SKIP_BYTES = 65_536

_NOT_A_VALUE = memoryview(b"")


class Connection:
    """One connection, opened when it is needed; one thread calls it.

    Every method raises UnavailableError when Redis is away, silent past `deadline_s` (on the
    monotonic clock), or answers what it should not. The connection is closed then, so that no later
    call reads the reply of an earlier one.
    """

    def __init__(self, url: str, *, connect_timeout_s: float) -> None:
        self._pool = ConnectionPool.from_url(
            url,
            protocol=2,  # no push messages between the replies
            socket_timeout=connect_timeout_s,
            socket_connect_timeout=connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="headrace-kv",
        )
        self._timeout_s = connect_timeout_s
        self._connection: Any = None
        self._raw: _DeadlineReader | None = None
        self._reader: io.BufferedReader | None = None

    def get_while(
        self,
        keys: Sequence[str],
        buffers: BufferPool,
        accept: Callable[[int, memoryview | None], bool],
        *,
        deadline_s: float,
    ) -> None:
        """Read the keys in order, as long as `accept(position, value)` says so.

        A value of another length than the buffers', and a key that holds no string, are given as
        an empty value; None is a key that is not there.
        """
        with self._exchange(deadline_s):
            sent = received = 0
            going = True
            while received < sent or (going and sent < len(keys)):
                if going:  # one at first: most chains that are not there are not there at all
                    until = min(len(keys), received + (IN_FLIGHT if received else 1))
                    self._send(*(_command(b"GET", key) for key in keys[sent:until]))
                    sent = max(sent, until)
                value = self._read_value(buffers)
                going = going and accept(received, value)
                received += 1

    def set_all(
        self,
        values: Sequence[tuple[str, bytes, bytes | memoryview]],
        *,
        ttl_s: int,
        deadline_s: float,
    ) -> list[bytes]:
        """Write (key, first part, second part); the replies, `+OK` or `-<error>`, in order."""
        with self._exchange(deadline_s):
            for key, head, tail in values:
                length = len(head) + len(tail)
                name = key.encode()
                begin = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, length)
                end = b"\r\n$2\r\nEX\r\n$%d\r\n%d\r\n" % (len(str(ttl_s)), ttl_s)
                self._send(begin + head, tail, end)
            return [self._read_line() for _ in values]

    def expire_all(self, keys: Sequence[str], *, ttl_s: int, deadline_s: float) -> list[bool]:
        """Give the keys a new time to live; whether each was there."""
        ttl = str(ttl_s)
        return self._ask_all([_command(b"EXPIRE", key, ttl) for key in keys], deadline_s)

    def unlink_all(self, keys: Sequence[str], *, deadline_s: float) -> list[bool]:
        """Delete the keys; whether each was there."""
        return self._ask_all([_command(b"UNLINK", key) for key in keys], deadline_s)

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.disconnect()
        self._connection = self._raw = self._reader = None

    def _ask_all(self, commands: Sequence[bytes], deadline_s: float) -> list[bool]:
        with self._exchange(deadline_s):
            self._send(*commands)
            lines = [self._read_line() for _ in commands]
            if not all(line.startswith(b":") for line in lines):
                raise ConnectionError(f"unexpected reply: {lines!r:.200}")
            return [line != b":0" for line in lines]

    @contextmanager
    def _exchange(self, deadline_s: float) -> Iterator[None]:
        try:
            if self._raw is not None and self._raw.has_something():
                self.close()  # the server closed it, or said what nobody asked for
            if self._raw is None:
                self._open()
            assert self._raw is not None  # noqa: S101
            self._raw.deadline_s = deadline_s
            yield
        except (RedisError, OSError, ValueError) as problem:
            self.close()
            raise UnavailableError("Redis (KV blocks)", self._timeout_s) from problem
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._connection = self._pool.make_connection()
        self._connection.connect()
        self._raw = _DeadlineReader(self._connection._sock)
        self._reader = io.BufferedReader(self._raw, buffer_size=SKIP_BYTES)

    def _send(self, *parts: bytes | memoryview) -> None:
        assert self._raw is not None  # noqa: S101
        for part in parts:
            self._raw.send(part)

    def _read_line(self) -> bytes:
        assert self._reader is not None  # noqa: S101
        line = self._reader.readline(1024)
        if not line.endswith(b"\r\n"):
            raise ConnectionError("Redis closed the connection, or sent no reply")
        return line[:-2]

    def _read_value(self, buffers: BufferPool) -> memoryview | None:
        line = self._read_line()
        if line == b"$-1":
            return None
        if line.startswith(b"-WRONGTYPE"):
            return _NOT_A_VALUE
        if not line.startswith(b"$"):
            raise ConnectionError(f"unexpected reply: {line!r:.200}")
        num_bytes = int(line[1:])
        if num_bytes == buffers.buffer_bytes:
            value = buffers.take()
            self._read_into(value)
        else:
            value = _NOT_A_VALUE
            self._skip(num_bytes)
        self._read_line()
        return value

    def _skip(self, num_bytes: int) -> None:
        scratch = memoryview(bytearray(SKIP_BYTES))
        for start in range(0, num_bytes, SKIP_BYTES):
            self._read_into(scratch[: min(SKIP_BYTES, num_bytes - start)])

    def _read_into(self, target: memoryview) -> None:
        assert self._reader is not None  # noqa: S101
        if self._reader.readinto(target) != len(target):
            raise ConnectionError("Redis closed the connection in the middle of a value")


class _DeadlineReader(io.RawIOBase):
    """A socket of which nothing waits past `deadline_s`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline_s = 0.0

    def readable(self) -> bool:
        return True

    def has_something(self) -> bool:
        """Whether bytes, or the end of the stream, wait to be read."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def readinto(self, target: Any) -> int:
        self._bound()
        return self._sock.recv_into(target)

    def send(self, data: bytes | memoryview) -> None:
        self._bound()
        self._sock.sendall(data)

    def _bound(self) -> None:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline is over")
        self._sock.settimeout(left_s)


def _command(name: bytes, *arguments: str) -> bytes:
    words = [name, *(argument.encode() for argument in arguments)]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
