"""The cancels of a client's link that no gateway has confirmed yet. Sans I/O.

A gateway answers in order, so the `pong` to a ping behind a cancel says that it has done it. What
was not confirmed on one socket is said again on the next: repeating a cancel does no harm.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from headrace.producers.client_follow import Frame
from headrace.schemas.errors import ErrorCode, RequestError

PING: Frame = {"type": "ping"}


@dataclass(eq=False, slots=True)
class Order:
    """One cancel. `problem` is why the gateway did not do it."""

    request_id: str
    session_id: str
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    problem: RequestError | None = None

    @property
    def frames(self) -> list[Frame]:
        names = {"request_id": self.request_id, "session_id": self.session_id}
        return [{"type": "cancel", **names}, PING]


class Orders:
    """All orders of a link. `none_left` is set while there are none."""

    def __init__(self) -> None:
        self.open: list[Order] = []
        self.none_left = asyncio.Event()
        self.none_left.set()
        self._pings: deque[Order] = deque()
        """Those said on this socket, in order."""

    def add(self, order: Order) -> None:
        """Keep it until it is confirmed."""
        self.open.append(order)
        self.none_left.clear()

    def forget_socket(self) -> None:
        """The answers to what was said come no more."""
        self._pings.clear()

    def said(self, order: Order) -> None:
        """Its frames were sent."""
        self._pings.append(order)

    def refused(self, request_id: str, problem: RequestError) -> None:
        """An error came that names this request: what was said of it was not done."""
        for order in self._pings:
            if order.request_id == request_id:
                order.problem = problem

    def pong(self) -> Order | None:
        """The oldest ping was answered; returns its order if that is to be said again later."""
        order = self._pings.popleft() if self._pings else None
        if order is None:
            return None
        if order.problem is not None and order.problem.code is ErrorCode.OVERLOADED:
            order.problem = None
            return order
        self._end(order)
        return None

    def end_all(self, problem: RequestError) -> None:
        """None of them can be done."""
        for order in list(self.open):
            order.problem = problem
            self._end(order)

    def _end(self, order: Order) -> None:
        if order in self.open:
            self.open.remove(order)
        order.confirmed.set()
        if not self.open:
            self.none_left.set()
