"""What all deliveries of a worker share, wired once in serving.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.models.request import EngineRequest
from headrace.streams.flusher import Flusher
from headrace.streams.generation import TextStream
from headrace.streams.journal import Journal
from headrace.streams.metrics import WorkerMetrics
from headrace.streams.ownership import Lease, Ownership
from headrace.streams.preparation import ServedModel
from headrace.streams.publisher import Publisher
from headrace.streams.redis_scripts import Scripts
from headrace.streams.session_store import SessionStore


class Engine(Protocol):
    """What a delivery needs of the engine (headrace.models.engine)."""

    def add(self, request: EngineRequest) -> None: ...

    def cancel(self, key: str) -> None: ...

    def abort(self, key: str) -> None: ...

    def text_stream(self, stop: Sequence[str]) -> TextStream: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What all deliveries of a worker share."""

    engine: Engine
    model: ServedModel
    journal: Journal
    scripts: Scripts
    sessions: SessionStore
    flusher: Flusher
    publisher: Publisher
    ownership: Ownership
    lease: Lease
    metrics: WorkerMetrics
