"""The broker's side: request, control and response logs, committed offsets, dead letters.

Whoever wants to know at once is told of every event that is appended and every commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from headrace.schemas.request import Record
from headrace.schemas.topics import Topics
from headrace.streams.ledger import Place, Watermark

TOPICS = Topics()


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as a producer hands it over."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass
class Broker:
    """Plain state. `on_event(partition, event)`, `on_commit(place, watermark)`."""

    num_partitions: int
    on_event: Callable[[int, dict[str, Any]], None]
    on_commit: Callable[[Place, Watermark], None]
    logs: dict[Place, list[Record | None]] = field(default_factory=dict)
    """None: a marker, which nobody is handed."""
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """All response events in the order of their arrival."""
    watermarks: dict[Place, Watermark] = field(default_factory=dict)
    dead_letters: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for partition in range(self.num_partitions):
            for topic in (TOPICS.requests, TOPICS.control):
                self.logs[Place(topic, partition)] = []

    def end(self, place: Place) -> int:
        return len(self.logs[place])

    def append(
        self, topic: str, partition: int, key: bytes, value: bytes | None, timestamp_ms: int
    ) -> Record:
        """A record of a client."""
        log = self.logs[Place(topic, partition)]
        record = Record(topic, partition, len(log), timestamp_ms, key, value, [])
        log.append(record)
        return record

    def append_marker(self, place: Place) -> None:
        """The end of a transaction takes an offset, too."""
        self.logs[place].append(None)

    def take(self, sent: Sent) -> None:
        """A record of a worker."""
        if sent.topic == TOPICS.dlq:
            self.dead_letters.append(sent.value)
            return
        assert sent.topic == TOPICS.responses
        event = orjson.loads(sent.value or b"")
        self.events.append((sent.partition, event))
        self.on_event(sent.partition, event)

    def commit(self, place: Place, watermark: Watermark) -> None:
        self.on_commit(place, watermark)
        self.watermarks[place] = watermark

    def committed(self, place: Place) -> int:
        return self.watermarks.get(place, Watermark(0)).offset
