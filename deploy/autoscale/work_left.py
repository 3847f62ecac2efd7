"""How much of the lag is still to be done: without clock or I/O.

The lag counts from the oldest unfinished record of each partition on, because that is where the
group's offset stands. Behind a long answer there may be hundreds that are finished. Workers say how
many they hold; those that have room have read everything, so what the lag counts beyond that is
finished.
"""

from collections.abc import Mapping
from typing import Any

from headrace.deploy.autoscale.speed import Counters

ROOM_SHARE = 0.8
"""A worker that holds less of what it may hold has read all there is for it."""

SETTLED_READINGS = 3
"""The same workers for so long: at a rebalance they have read nothing for a moment."""


class WorkLeft:
    """Tokens to do, of the tokens that the lag counts. `full_open`: what a worker may hold."""

    def __init__(self, full_open: int) -> None:
        self._full_open = full_open
        self._finished = 0.0
        """Records that are finished behind an unfinished one, when that was last known."""
        self._names: frozenset[Any] = frozenset()
        self._num_same = 0

    def tokens(self, records: int, tokens: int, workers: Mapping[Any, Counters]) -> int:
        """What is left of `records` requests of `tokens`: those that run are half done."""
        rows = sum(one.rows for one in workers.values())
        waiting = sum(one.waiting for one in workers.values())
        beyond = max(0.0, records - rows - waiting)
        if self._is_settled(workers) and self._have_room(workers):
            self._finished = beyond
        self._finished = min(self._finished, beyond)
        unread = beyond - self._finished
        if records == 0:
            return 0
        return round(tokens * min(1.0, (unread + waiting + rows / 2) / records))

    def _is_settled(self, workers: Mapping[Any, Counters]) -> bool:
        names = frozenset(workers)
        self._num_same = self._num_same + 1 if names and names == self._names else 0
        self._names = names
        return self._num_same >= SETTLED_READINGS

    def _have_room(self, workers: Mapping[Any, Counters]) -> bool:
        limit = ROOM_SHARE * self._full_open
        return all(one.rows + one.waiting < limit for one in workers.values())
