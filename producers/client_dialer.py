"""How a client reaches a gateway: any of several addresses, one try after another, jittered."""

import random
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from headrace.schemas.errors import RequestError, SettingsError, UnavailableError, told_error

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
OPEN_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0

PING_INTERVAL_S = 10.0
"""A gateway that is gone without a word is noticed within two of these."""

MAX_FRAME_BYTES = 32 * 2**20
"""More than the largest event of a gateway at its largest settings."""

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_PASSING = (408, 425, 429)


@dataclass(frozen=True, slots=True, repr=False)
class Addresses:
    """Where the gateways are, and how to be let in."""

    urls: tuple[str, ...]
    api_key: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls, urls: Sequence[str], api_key: str | None, tls: ssl.SSLContext | None
    ) -> "Addresses":
        """Raises: SettingsError where one is no URL of a gateway."""
        return cls(tuple(_stream_url(url) for url in urls), api_key, tls)


def _stream_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise SettingsError(f"{url!r} is no gateway's URL: http://host:port or https://host:port")
    path = parts.path.rstrip("/").removesuffix("/v1/stream").removesuffix("/v1")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}/v1/stream"


class Dialer:
    """Opens one socket after another; each try goes to the next address.

    Every dialer begins at an address of its own choice, so that many clients spread.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._next = random.randrange(len(addresses.urls))
        self._num_failures = 0

    async def open(self) -> ClientConnection:
        """One try. Raises: UnavailableError (another try may help), RequestError (refused).

        Cancel: safe, nothing stays open.
        """
        urls = self._addresses.urls
        url = urls[self._next % len(urls)]
        self._next += 1
        key = self._addresses.api_key
        try:
            return await connect(
                url,
                additional_headers={"Authorization": f"Bearer {key}"} if key else None,
                compression=None,
                open_timeout=OPEN_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_INTERVAL_S,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_FRAME_BYTES,
                ssl=(self._addresses.tls or True) if url.startswith("wss:") else None,
            )
        except InvalidStatus as problem:
            raise _refusal(problem, url) from problem
        except (OSError, TimeoutError, WebSocketException) as problem:
            raise UnavailableError(url, OPEN_TIMEOUT_S, f"was not reached: {problem}") from problem

    def went_well(self) -> None:
        """A gateway answered: the next pause is a short one."""
        self._num_failures = 0

    def next_pause_s(self) -> float:
        """Before the next try: longer each time, and by chance, so that clients spread."""
        most_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._num_failures, 10))
        self._num_failures += 1
        return random.uniform(0, most_s)


def _refusal(problem: InvalidStatus, url: str) -> UnavailableError | RequestError:
    status = problem.response.status_code
    if status >= 500 or status < 400 or status in _PASSING:
        return UnavailableError(url, OPEN_TIMEOUT_S, f"answered with status {status}")
    try:
        body = orjson.loads(problem.response.body or b"")
        return told_error(body["error"])
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return told_error({"code": "unauthorized", "message": f"{url} refuses us: status {status}"})
