"""Who waits for which part of the log's past, and whose turn it is to be read for. Sans I/O.

Readers of one partition share what is read: a chunk that is read for one of them is given to all
whose place lies in it. Then it is the turn of the one that waits longest, so that a reader that has
far to go holds nobody up. A reader that takes no more is left out until it joins again: what it
missed is read once more.
"""

from collections.abc import Iterable
from typing import Protocol

from headrace.consumers.log_event import LogEvent, Wanted


class PastReader(Protocol):
    """One that wants something of the past."""

    wanted: Wanted
    next_offset: dict[int, int]
    """By partition: everything before it was taken or is not wanted."""

    def wants_until(self, partition: int) -> int:
        """The end of what it wants to have read to it of a partition now."""

    def take(self, event: LogEvent) -> bool:
        """Take a wanted event; False where it takes no more for now."""

    def notice(self, problem: Exception | None = None) -> None:
        """It was given events, is at an end, or `problem` ends it."""


Name = tuple[str, str | None, str | None]
"""Tenant, session id, request id."""


class _Waiting:
    """The readers of one partition."""

    def __init__(self) -> None:
        self.turns: dict[PastReader, None] = {}
        """In the order of their turns."""
        self.by_name: dict[Name, set[PastReader]] = {}
        self.served: set[PastReader] = set()
        """For whom something was read since the partition was claimed."""


class PastQueue:
    """The readers that wait, by partition, and the partitions that are being read for them."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Waiting] = {}
        """In the order of their turns; none without a reader."""
        self._claimed: set[int] = set()

    def join(self, reader: PastReader) -> None:
        """Wait in each partition where `reader` is behind; where it waits already it keeps its
        turn.
        """
        for partition in reader.next_offset:
            if _is_behind(reader, partition):
                waiting = self._partitions.setdefault(partition, _Waiting())
                waiting.turns.setdefault(reader)
                waiting.by_name.setdefault(_name(reader.wanted), set()).add(reader)

    def leave(self, reader: PastReader) -> None:
        """Wait no more. Safe to call twice."""
        for partition in reader.next_offset:
            self._leave(partition, reader)

    def claim(self) -> tuple[int, int] | None:
        """The partition and offset to read next; it is nobody else's until `release`."""
        for partition, waiting in self._partitions.items():
            if partition not in self._claimed:
                self._claimed.add(partition)
                reader = next(iter(waiting.turns))
                waiting.turns[reader] = waiting.turns.pop(reader)  # the next turn is another's
                return partition, reader.next_offset[partition]
        return None

    def release(self, partition: int) -> None:
        """Its turn is over, and that of the readers that were served: others come first now."""
        self._claimed.discard(partition)
        waiting = self._partitions.pop(partition, None)
        if waiting is None:
            return
        self._partitions[partition] = waiting
        late = dict.fromkeys(reader for reader in waiting.turns if reader in waiting.served)
        if late and len(late) < len(waiting.turns):
            early = {reader: None for reader in waiting.turns if reader not in late}
            waiting.turns = early | late
        waiting.served.clear()

    def hand_out(self, partition: int, start: int, end: int, events: Iterable[LogEvent]) -> None:
        """Give all that the log has in [start, end) to those whose place lies there."""
        waiting = self._partitions.get(partition)
        if waiting is None:
            return
        here = {one for one in waiting.turns if start <= one.next_offset[partition] < end}
        given: set[PastReader] = set()
        for event in events:
            for name in _names(event):
                for reader in waiting.by_name.get(name, set()) & here:
                    given.add(reader)
                    if not _give(reader, event):
                        here.discard(reader)
                        self.leave(reader)
        waiting.served |= here
        for reader in here:
            until = reader.wants_until(partition)
            reader.next_offset[partition] = max(min(end, until), reader.next_offset[partition])
            if reader.next_offset[partition] >= until:
                self._leave(partition, reader)
                given.add(reader)
        for reader in given:
            reader.notice()

    def is_wanted(self, partition: int, offset: int) -> bool:
        """Whether somebody waits for what stands at `offset`."""
        waiting = self._partitions.get(partition)
        return waiting is not None and any(
            reader.next_offset[partition] == offset for reader in waiting.turns
        )

    def fail(self, partition: int, offset: int, problem: Exception) -> None:
        """What stands at `offset` cannot be read: those who wait for it are told."""
        waiting = self._partitions.get(partition)
        for reader in list(waiting.turns) if waiting is not None else ():
            if reader.next_offset[partition] == offset:
                self.leave(reader)
                reader.notice(problem)

    def _leave(self, partition: int, reader: PastReader) -> None:
        waiting = self._partitions.get(partition)
        if waiting is None or reader not in waiting.turns:
            return
        del waiting.turns[reader]
        waiting.served.discard(reader)
        name = _name(reader.wanted)
        waiting.by_name[name].discard(reader)
        if not waiting.by_name[name]:
            del waiting.by_name[name]
        if not waiting.turns:
            del self._partitions[partition]


def _is_behind(reader: PastReader, partition: int) -> bool:
    return reader.next_offset[partition] < reader.wants_until(partition)


def _give(reader: PastReader, event: LogEvent) -> bool:
    """Whether the reader goes on to take."""
    partition = event.partition
    if not reader.next_offset[partition] <= event.offset < reader.wants_until(partition):
        return True
    reader.next_offset[partition] = event.offset + 1
    return reader.take(event)


def _name(wanted: Wanted) -> Name:
    return wanted.tenant, wanted.session_id, wanted.request_id


def _names(event: LogEvent) -> tuple[Name, Name, Name]:
    """Under which an event can be wanted."""
    tenant, session, request = event.tenant, event.session_id, event.request_id
    return (tenant, session, None), (tenant, None, request), (tenant, session, request)
