"""A way into a pipeline, as a run needs it."""

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.deploy.bench.exchange import Exchange


class Observer(Protocol):
    """Is told of every event of every answer."""

    def saw(self, exchange: Exchange, event: dict[str, Any]) -> None:
        """An event of this exchange has come, for the first time or once more."""


class Way(Protocol):
    """Sends requests and reads the answers."""

    async def start(self, observer: Observer) -> None:
        """Connect. Raises: HeadraceError."""

    async def stop(self) -> None:
        """Disconnect. Safe to call twice."""

    async def ask(self, exchange: Exchange, body: dict[str, Any]) -> None:
        """Send a request; returns when its exchange is closed, or the reading ended.

        Raises: WayError, HeadraceError: it was refused, or not sent. Cancel: nothing more is told
        of this exchange.
        """

    async def cancel(self, exchanges: Sequence[Exchange]) -> bool:
        """Ask the workers to end these; returns whether their last events are still to come."""


class WayError(Exception):
    """A request failed on its way, or was refused; `code` names how."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
