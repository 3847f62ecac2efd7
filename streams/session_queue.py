"""The order of a session: a turn starts when the turn before it is finished.

Plain state, no I/O. A queue exists for each (tenant, session) that has an unfinished turn here.
"""

import asyncio
from collections import deque

SessionKey = tuple[str, str]
"""(tenant, session id): two tenants may use the same session id for different conversations."""


class SessionQueues:
    """Gives each turn a place when it is read, in log order, and its start when it is first."""

    def __init__(self) -> None:
        self._queues: dict[SessionKey, deque[asyncio.Event]] = {}

    def enqueue(self, session: SessionKey) -> asyncio.Event:
        """Take the next place; the event is set when it is this turn's time to start."""
        queue = self._queues.setdefault(session, deque())
        place = asyncio.Event()
        queue.append(place)
        queue[0].set()
        return place

    def leave(self, session: SessionKey, place: asyncio.Event) -> None:
        """Give up `place`, finished or dropped; whoever is first now may start."""
        queue = self._queues.get(session)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        if queue:
            queue[0].set()
        else:
            del self._queues[session]

    def __len__(self) -> int:
        return len(self._queues)
