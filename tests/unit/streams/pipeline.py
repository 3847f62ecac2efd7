"""A worker's parts wired for tests: everything real but Redis, Kafka and the model."""

import asyncio
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import orjson

from headrace.models.constraints import GrammarCompiler
from headrace.models.request import EngineError, EngineOutput, EngineRequest, FinishReason
from headrace.schemas.errors import UnavailableError
from headrace.schemas.reply import is_last
from headrace.schemas.request import DecodedRequest, Record
from headrace.schemas.topics import Topics
from headrace.streams.deliveries import Deliveries
from headrace.streams.flusher import Flusher
from headrace.streams.generation import Flush, Generation, JournalEntry
from headrace.streams.group import GroupMember
from headrace.streams.intake import Intake
from headrace.streams.journal import (
    Claim,
    ClaimKind,
    ConfirmResult,
    FlushResult,
    Journal,
    source_of,
)
from headrace.streams.kafka import PipelineApp
from headrace.streams.ledger import AckLedger, Place
from headrace.streams.metrics import WorkerMetrics
from headrace.streams.ownership import Assignment, Lease, Ownership
from headrace.streams.parts import Parts
from headrace.streams.preparation import ServedModel
from headrace.streams.publisher import Publisher
from headrace.streams.redis_scripts import Call, Scripts
from headrace.streams.roster import Roster
from headrace.streams.session_store import SessionRecord, SessionStore
from tests.fakes import ByteEncoder, ByteStream, Changes
from tests.tiny_model import VOCAB_SIZE, make_tiny_tokenizer

PARTITION = 3
PLACE = Place("requests", PARTITION)
CONTROL = Place("control", PARTITION)
BROKEN_TEXT = "BOOM"
"""A prompt with this text in it breaks the encoder."""


class Calls(list[tuple[str, str]]):
    """What the doubles were asked to do, in order: (what, request id)."""

    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self._changes = changes

    def note(self, what: str, request_id: str) -> None:
        self.append((what, request_id))
        self._changes.notify()

    def of(self, request_id: str) -> list[str]:
        """What happened to one request."""
        return [what for what, about in self if about == request_id]


class SwitchableRedis(Scripts):
    """Is there or away, or accepts calls and answers when the test lets it."""

    def __init__(self) -> None:
        self.available = asyncio.Event()
        self.available.set()
        self.away = False
        self.answering = asyncio.Event()
        self.answering.set()

    def go_away(self) -> None:
        self.away = True
        self.available.clear()

    def come_back(self) -> None:
        self.away = False
        self.available.set()

    async def answer(self) -> None:
        """One call. Raises: UnavailableError while it is away."""
        await asyncio.sleep(0)
        await self.answering.wait()
        if self.away:
            self.available.clear()
            raise UnavailableError("Redis", 0.5)

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        raise AssertionError("the stores of these tests call no scripts")


@dataclass
class Stored:
    """One journal."""

    token: int
    source: str
    session: str
    entry: JournalEntry


class MemoryJournal(Journal):
    """Journals in memory that answer as the scripts do (tests/integration/test_journal.py)."""

    def __init__(self, redis: SwitchableRedis, calls: Calls) -> None:
        self._redis, self._calls = redis, calls
        self.stored: dict[tuple[str, str], Stored] = {}
        self.early: set[tuple[str, str, str]] = set()
        self.fences: dict[int, int] = {}
        self.answers_after_confirm = True

    def forget_everything(self) -> None:
        """Redis was emptied."""
        self.stored.clear()
        self.fences.clear()

    def of(self, request_id: str) -> Stored:
        return self.stored["default", request_id]

    async def own(self, partitions: Sequence[int], clock_ms: int) -> list[int]:
        await self._redis.answer()
        self._calls.note("own", "")
        for number in partitions:
            self.fences[number] = max(clock_ms, self.fences.get(number, 0) + 1)
        return [self.fences[number] for number in partitions]

    async def claim(self, decoded: DecodedRequest, *, token: int, may_create: bool) -> Claim:
        await self._redis.answer()
        self._calls.note("claim", decoded.request_id)
        key = (decoded.tenant, decoded.request_id)
        found = self.stored.get(key)
        if found is None:
            if not may_create:
                return Claim(ClaimKind.ABSENT)
            cancelled = self._take_early(decoded)
            entry = JournalEntry(attempt=token, cancelled=cancelled)
            self.stored[key] = Stored(token, source_of(decoded), decoded.session_id, entry)
            return Claim(ClaimKind.CREATED, entry)
        if found.source != source_of(decoded):
            return Claim(ClaimKind.DUPLICATE)
        if found.token > token:
            return Claim(ClaimKind.FENCED)
        found.token = token
        if not (found.entry.start or found.entry.ending or found.entry.done):
            found.entry = replace(found.entry, attempt=token)
        before = found.entry
        num_ids = len(before.ids)
        found.entry = replace(before, runner="this one", num_ids_claimed=num_ids, alone=False)
        return Claim(ClaimKind.RESUMED, before)

    async def note_failures(self, generation: Generation, failures: int, *, alone: bool) -> None:
        await self._redis.answer()
        decoded = generation.decoded
        self._calls.note("alone" if alone else "failed", decoded.request_id)
        found = self.stored[decoded.tenant, decoded.request_id]
        found.entry = replace(found.entry, failures=failures, alone=alone)

    async def flush(self, flushes: Sequence[tuple[Generation, Flush]]) -> list[FlushResult]:
        try:
            await self._redis.answer()
        except UnavailableError:
            return [FlushResult.AWAY] * len(flushes)
        return [self._flush(generation, flush) for generation, flush in flushes]

    def _flush(self, generation: Generation, flush: Flush) -> FlushResult:
        decoded = generation.decoded
        found = self.stored.get((decoded.tenant, decoded.request_id))
        if found is None or found.source != source_of(decoded):
            return FlushResult.ABSENT
        if found.token > generation.token:
            return FlushResult.FENCED
        self._calls.note("flush", decoded.request_id)
        old = found.entry
        found.entry = replace(
            old,
            ids=old.ids[: flush.ids_kept] + flush.new_ids,
            bounds=old.bounds[: flush.bounds_kept] + flush.new_bounds,
            confirmed=flush.confirmed,
            start=flush.start or old.start,
            ending=flush.ending or old.ending,
        )
        return FlushResult.CANCELLED if old.cancelled else FlushResult.OK

    async def adopt(
        self, generation: Generation, entry: JournalEntry, *, may_create: bool
    ) -> FlushResult:
        try:
            await self._redis.answer()
        except UnavailableError:
            return FlushResult.AWAY
        decoded = generation.decoded
        key = (decoded.tenant, decoded.request_id)
        found = self.stored.get(key)
        if found is None and not may_create:
            return FlushResult.ABSENT
        if found is not None and found.token > generation.token:
            return FlushResult.FENCED
        self._calls.note("adopt", decoded.request_id)
        cancelled = self._take_early(decoded) or (found is not None and found.entry.cancelled)
        entry = replace(entry, cancelled=cancelled)
        source = source_of(decoded)
        self.stored[key] = Stored(generation.token, source, decoded.session_id, entry)
        return FlushResult.CANCELLED if cancelled else FlushResult.OK

    async def confirm(self, generation: Generation) -> ConfirmResult:
        await self._redis.answer()
        decoded = generation.decoded
        self._calls.note("confirm", decoded.request_id)
        if not self.answers_after_confirm:
            self._redis.answering.clear()
        found = self.stored.get((decoded.tenant, decoded.request_id))
        if found is None or found.source != source_of(decoded):
            return ConfirmResult.ABSENT
        if found.token != generation.token:
            larger = found.token > generation.token
            return ConfirmResult.FENCED if larger else ConfirmResult.OLDER
        found.entry = JournalEntry(attempt=found.entry.attempt, done=True)
        return ConfirmResult.OK

    async def cancel(self, *, tenant: str, request_id: str, session_id: str) -> None:
        await self._redis.answer()
        self._calls.note("journal cancel", request_id)
        found = self.stored.get((tenant, request_id))
        if found is None:
            self.early.add((tenant, request_id, session_id))
        elif found.session == session_id and found.entry.ending is None and not found.entry.done:
            found.entry = replace(found.entry, cancelled=True)

    def _take_early(self, decoded: DecodedRequest) -> bool:
        key = (decoded.tenant, decoded.request_id, decoded.session_id)
        found = key in self.early
        self.early.discard(key)
        return found


class MemoryRoster(Roster):
    """Knows which workers have died; the test says."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    async def is_gone(self, worker_id: str) -> bool:
        await asyncio.sleep(0)
        return worker_id in self.gone


class MemorySessions(SessionStore):
    """Conversations in memory."""

    def __init__(self, redis: SwitchableRedis, calls: Calls) -> None:
        self._redis, self._calls = redis, calls
        self._remembered, self._unsaved = OrderedDict(), defaultdict(list)
        self.records: dict[tuple[str, str], SessionRecord] = {}
        self.last: dict[tuple[str, str], str] = {}
        self.tokens: dict[tuple[str, str], int] = {}

    async def load(self, tenant: str, session_id: str) -> SessionRecord:
        await self._redis.answer()
        await self._save(tenant, session_id)
        record = self.records.get((tenant, session_id), SessionRecord())
        self._remember(tenant, session_id, record)
        return record

    async def store(
        self, generation: Generation, record: SessionRecord, *, read_version: int, token: int
    ) -> str:
        await self._redis.answer()
        decoded = generation.decoded
        key = (decoded.tenant, decoded.session_id)
        self._calls.note("store", decoded.request_id)
        if self.last.get(key) == decoded.request_id:
            return "stored before"
        if self.tokens.get(key, 0) > token:
            return "fenced"
        version = self.records.get(key, SessionRecord()).version
        if version != read_version:
            return "changed"
        self.records[key] = replace(record, version=version + 1)
        self._remember(*key, self.records[key])
        self.last[key] = decoded.request_id
        self.tokens[key] = token
        return "ok"

    async def delete(
        self, tenant: str, session_id: str, *, tombstone: Record | None = None
    ) -> None:
        await self._redis.answer()
        self._calls.note("delete", session_id)
        old = self.records.pop((tenant, session_id), SessionRecord())
        self.records[tenant, session_id] = SessionRecord(version=old.version + 1)


class RecordingPublisher(Publisher):
    """Keeps what is published; the broker acknowledges at once, or when the test says so."""

    def __init__(self, calls: Calls, deliveries: Deliveries) -> None:
        self._calls, self._deliveries = calls, deliveries
        self.log: list[dict[str, Any]] = []
        self.dead: list[tuple[Record, str, int]] = []
        """Record, reason, attempts."""
        self.acknowledging = True
        self.max_event_bytes = 1_000_000
        self._unacknowledged: list[tuple[Generation, int, int]] = []

    async def publish(self, generation: Generation) -> None:
        for event in generation.take_publishable(self.max_event_bytes):
            await asyncio.sleep(0)
            body = orjson.loads(event.value)
            self.log.append(body)
            self._unacknowledged.append((generation, generation.attempt, event.sequence_number))
            self._calls.note("last" if is_last(body) else "publish", generation.decoded.request_id)
        if self.acknowledging:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Everything that was sent."""
        waiting, self._unacknowledged = self._unacknowledged, []
        for generation, attempt, number in waiting:
            if generation.attempt == attempt:
                generation.acknowledged = max(generation.acknowledged, number + 1)
                self._deliveries.on_acknowledged(generation)

    async def dead_letter(self, record: Record, reason: str, error: str, attempts: int) -> None:
        await asyncio.sleep(0)
        self.dead.append((record, reason, attempts))

    def of(self, request_id: str) -> list[dict[str, Any]]:
        return [event for event in self.log if event["id"] == request_id]


class ScriptedEngine:
    """Runs nothing: the test says what each generation makes, and when."""

    def __init__(self, calls: Calls, deliveries: Deliveries) -> None:
        self._calls, self._deliveries = calls, deliveries
        self.running: dict[str, tuple[EngineRequest, ByteStream]] = {}
        self._scheduled_s: dict[str, float] = {}
        self.problem: Exception | None = None
        self.added: list[EngineRequest] = []
        self.num_expected = 0

    def add(self, request: EngineRequest) -> None:
        if self.problem is not None:
            raise self.problem
        if request.key in self.running:
            raise ValueError(f"{request.key} is running")
        stream = ByteStream(request.sampling.stop)
        for token_id in request.generated_ids:
            stream.push(token_id)
        self.running[request.key] = (request, stream)
        self._scheduled_s[request.key] = time.monotonic()
        self.added.append(request)
        self._calls.note("add", request.key)

    def expect(self, change: int) -> None:
        self.num_expected += change
        assert self.num_expected >= 0

    def cancel(self, key: str) -> None:
        """At the next step boundary, as the real one does."""
        self._calls.note("engine cancel", key)
        asyncio.get_running_loop().call_soon(self._end_cancelled, key)

    def _end_cancelled(self, key: str) -> None:
        if key in self.running:
            self.say(key, "", FinishReason.CANCELLED)

    def share(self, key: str) -> None:
        self._calls.note("share", key)

    def abort(self, key: str) -> None:
        self.running.pop(key, None)

    def text_stream(self, stop: Sequence[str]) -> ByteStream:
        return ByteStream(stop)

    def say(self, key: str, text: str, finish: FinishReason | None = None) -> None:
        """One step's output."""
        _, stream = self.running[key]
        ids = list(text.encode())
        shown = "".join(map(stream.push, ids))
        if finish is not None:
            shown += stream.finish()
            del self.running[key]
        now_s = time.monotonic()
        self._emit(EngineOutput(key, ids, shown, finish, None, self._scheduled_s[key], now_s))

    def fail(self, key: str, error: EngineError) -> None:
        del self.running[key]
        now_s = time.monotonic()
        self._emit(EngineOutput(key, [], "", None, error, now_s, now_s))

    def _emit(self, output: EngineOutput) -> None:
        self._deliveries.on_outputs([output])


class PlainEncoder(ByteEncoder):
    """Breaks at BROKEN_TEXT, and waits until it may encode."""

    def __init__(self) -> None:
        self.may_encode = threading.Event()
        self.may_encode.set()
        self.num_encoded = 0

    def encode_prompt(self, text: str) -> list[int]:
        if BROKEN_TEXT in text:
            raise RuntimeError("the encoder broke")
        assert self.may_encode.wait(10)
        self.num_encoded += 1
        return super().encode_prompt(text)


@cache
def grammars() -> GrammarCompiler:
    """A real one; what it compiles for is of no account to an engine that runs nothing."""
    return GrammarCompiler(make_tiny_tokenizer(), vocab_size=VOCAB_SIZE, eos_ids={0})


class Pipeline:
    """Intake to commit."""

    def __init__(self, tasks: asyncio.TaskGroup, *, max_open: int, end_offset: int | None) -> None:
        self.changes = Changes()
        self.calls = Calls(self.changes)
        self.redis = SwitchableRedis()
        self.journal = MemoryJournal(self.redis, self.calls)
        self.sessions = MemorySessions(self.redis, self.calls)
        self.deliveries = Deliveries()
        self.ledger, self.ownership, self.lease = AckLedger(), Ownership(), Lease(1e6)
        self.ledger.begin(PLACE, 10)
        self.ledger.begin(CONTROL, 0)
        self.roster = MemoryRoster()
        self.publisher = RecordingPublisher(self.calls, self.deliveries)
        self.engine = ScriptedEngine(self.calls, self.deliveries)
        self.metrics = WorkerMetrics()
        self.metrics.count_ignored_of((PLACE.topic, CONTROL.topic))
        self.flusher = Flusher(
            self.journal,
            self.redis,
            self.publisher,
            self.ownership,
            self.lease,
            on_cancel=self.deliveries.on_cancel,
            on_fenced=self.deliveries.on_fenced,
        )
        aliases, self.encoder = frozenset({"tiny"}), PlainEncoder()
        model = ServedModel("tiny", aliases, "fp-1", 10_000, 300, 1_000, self.encoder, grammars())
        self.parts = Parts(
            self.engine,
            model,
            self.journal,
            self.redis,
            self.sessions,
            self.flusher,
            self.publisher,
            self.ownership,
            self.lease,
            self.metrics,
            self.roster,
            asyncio.Lock(),
        )
        self.tasks = tasks
        self.intake = Intake(self.parts, self.ledger, self.deliveries, tasks, max_open=max_open)
        self.max_open = max_open
        self.next_offset = 10
        self.lease.heartbeat_answered(time.monotonic())
        self.assign(end_offset=end_offset)
        self.offsets: dict[str, int] = {}

    def assign(self, *partitions: int, end_offset: int | None = 0) -> None:
        """The group gives partitions to this worker, with tokens of now."""
        owned = partitions or (PARTITION,)
        now_ms = int(time.time() * 1000)
        for number in owned:
            last = self.journal.fences.get(number, 0)
            self.journal.fences[number] = max(now_ms, last + 1)
        self.ownership.assign(
            Assignment(number, self.journal.fences[number], end_offset) for number in owned
        )

    def lose_partitions(self) -> None:
        """The group gives everything to another worker."""
        self.ownership.keep_only([])
        for place, offset in self.ledger.keep_only([]):
            self.deliveries.drop(place, offset)

    def record(
        self, request_id: str, text: str = "hi", *, session: str = "s1", **fields: Any
    ) -> Record:
        """The next record of the request topic."""
        body = {"request_id": request_id, "prompt": text, "seed": 1, **fields}
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        self.offsets[request_id] = offset
        now_ms = int(time.time() * 1000)
        return Record(
            "requests", PARTITION, offset, now_ms, session.encode(), orjson.dumps(body), []
        )

    async def send(self, request_id: str, text: str = "hi", **fields: Any) -> Record:
        """The intake takes a new request."""
        record = self.record(request_id, text, **fields)
        await self.take(record)
        return record

    async def take(self, record: Record) -> None:
        await self.intake.take_request(record, time.monotonic())

    def control(self, *, offset: int = 0, **body: Any) -> None:
        """The intake takes a control record."""
        value = orjson.dumps(body)
        record = Record(
            "control", PARTITION, offset, 0, body.get("session_id", "").encode(), value, []
        )
        self.intake.take_control(record, time.monotonic())

    def key(self, request_id: str) -> str | None:
        """Under which the engine runs a request now."""
        prefix = f"requests-{PARTITION}-{self.offsets[request_id]}@"
        return next((key for key in self.engine.running if key.startswith(prefix)), None)

    async def started(self, request_id: str) -> str:
        """Wait until the engine has it."""
        await self.changes.until(lambda: self.key(request_id))
        key = self.key(request_id)
        assert key is not None
        return key

    async def say(self, request_id: str, text: str, *, finish: bool = False) -> None:
        """The engine makes text for a request, once it has it."""
        key = await self.started(request_id)
        self.engine.say(key, text, FinishReason.STOP if finish else None)

    def is_open(self, request_id: str) -> bool:
        return self.ledger.is_open(PLACE, self.offsets[request_id])

    async def finished(self, request_id: str) -> None:
        """Wait until its offset may be committed."""
        await self.until(lambda: not self.is_open(request_id))

    async def until(self, true: Any) -> None:
        """Wait for what is not noted as a call: asked again at every turn of the loop."""
        async with asyncio.timeout(5):
            while not true():  # noqa: ASYNC110 - plain state has no event
                await asyncio.sleep(0.002)

    def text(self, request_id: str) -> str:
        """All text of its events."""
        events = self.publisher.of(request_id)
        return "".join(e["choices"][0]["delta"]["content"] for e in events if "choices" in e)

    async def settle(self) -> None:
        """Let everything happen that can happen without the test."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def free_slots(self) -> int:
        """How many admission slots are free, found by filling the worker."""
        probes = [self.record(f"probe{n}", session=f"probe{n}") for n in range(self.max_open + 1)]
        taken = 0
        for record in probes:
            try:
                async with asyncio.timeout(0.05):
                    await self.take(record)
            except TimeoutError:
                break
            taken += 1
        return taken


def member_of(p: Pipeline, group: object, topics: Topics) -> GroupMember:
    """A member of the group with the parts of `p`; `group` is in the place of the Kafka app."""
    return GroupMember(
        cast(PipelineApp, group),
        topics,
        p.journal,
        p.ledger,
        p.deliveries,
        p.ownership,
        p.lease,
        p.sessions,
        p.flusher,
    )


@asynccontextmanager
async def pipeline(*, max_open: int = 8, end_offset: int | None = 0) -> AsyncIterator[Pipeline]:
    """A pipeline that flushes in the background until the test ends."""
    async with asyncio.TaskGroup() as tasks:
        made = Pipeline(tasks, max_open=max_open, end_offset=end_offset)
        flushing = tasks.create_task(made.flusher.run())
        try:
            yield made
        finally:
            made.intake.close()
            for task in made.deliveries.tasks:
                task.cancel()
            made.redis.answering.set()
            made.redis.come_back()
            with suppress(asyncio.CancelledError):
                await made.settle()
            flushing.cancel()
