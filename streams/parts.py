"""What all deliveries of a worker share, wired once in serving.py."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.models.kv.write_behind import Turn
from headrace.models.request import EngineRequest, KVBlock
from headrace.streams.flusher import Flusher
from headrace.streams.generation import TextStream
from headrace.streams.journal import Journal
from headrace.streams.metrics import WorkerMetrics
from headrace.streams.ownership import Lease, Ownership
from headrace.streams.preparation import ServedModel
from headrace.streams.publisher import Publisher
from headrace.streams.redis_scripts import Scripts
from headrace.streams.resuming import Resuming
from headrace.streams.roster import Roster
from headrace.streams.session_store import SessionStore
from headrace.streams.story import Tracer


class Engine(Protocol):
    """What a delivery needs of the engine (headrace.models.engine)."""

    def add(self, request: EngineRequest) -> None: ...

    def expect(self, change: int) -> None: ...

    def cancel(self, key: str) -> None: ...

    def abort(self, key: str) -> None: ...

    def share(self, key: str) -> None: ...

    def text_stream(self, stop: Sequence[str]) -> TextStream: ...


class KVTier(Protocol):
    """KV state outside of this process (headrace.models.kv.tier)."""

    async def fetch(self, token_ids: Sequence[int], tenant: str) -> tuple[KVBlock, ...]: ...

    def release(self, num_blocks: int) -> None: ...

    def prefilled(self, num_tokens: int, seconds: float) -> None: ...

    def keep(self, turn: Turn) -> None: ...

    async def delete(self, turn: Turn) -> None: ...


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
    roster: Roster
    isolation: asyncio.Lock
    """Held by the one suspect that begins alone (failures.py)."""
    resuming: Resuming = field(default_factory=Resuming)
    kv: KVTier | None = None
    """None: KV_TO_REDIS is off."""
    tracer: Tracer | None = None
    """None: TRACES is off."""
