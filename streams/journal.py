"""The generation journal in Redis: steps own, claim, flush and confirm. One script call each.

Knows nothing of Kafka or the engine; what the answers mean for a generation is decided by its
callers.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import structlog
from redis.exceptions import RedisError

from headrace.schemas.errors import UnavailableError
from headrace.schemas.keys import Keys
from headrace.schemas.request import DecodedRequest
from headrace.streams import lua
from headrace.streams.generation import Flush, Generation, JournalEntry
from headrace.streams.journal_codec import decode_entry, encode_ending, encode_start, pack
from headrace.streams.redis_scripts import CALL_TIMEOUT_S, Call, Scripts

log = structlog.get_logger(__name__)

EARLY_CANCEL_TTL_MS = 3_600_000
"""How long a cancel waits for its request to be read: longer than a backlog
that anybody still reads.
"""


class ClaimKind(Enum):
    CREATED = "created"
    RESUMED = "resumed"
    DUPLICATE = "duplicate"
    """Another record has this request id: the first one counts."""
    FENCED = "fenced"
    ABSENT = "absent"
    """There is no journal and this worker may not make one."""
    UNREADABLE = "unreadable"
    """Another version of this program wrote it: as if it were lost."""


@dataclass(frozen=True, slots=True)
class Claim:
    kind: ClaimKind
    entry: JournalEntry | None = None


class FlushResult(Enum):
    OK = "ok"
    CANCELLED = "cancelled"
    """Written, and somebody asks for the generation's end."""
    ABSENT = "absent"
    FENCED = "fenced"
    AWAY = "away"
    """No answer, or a refusal such as out of memory: not known to be written."""


class ConfirmResult(Enum):
    OK = "ok"
    ABSENT = "absent"
    FENCED = "fenced"
    OLDER = "older"
    """The journal is an older owner's: adopt it, then confirm again."""


class Journal:
    """The journals of one pipeline."""

    def __init__(self, scripts: Scripts, keys: Keys, *, ttl_s: int, worker_id: str) -> None:
        self._scripts, self._keys, self._worker_id = scripts, keys, worker_id
        self._ttl_ms = ttl_s * 1000

    async def own(self, partitions: Sequence[int], clock_ms: int) -> list[int]:
        """own: a fencing token for each partition, larger than any before.

        Raises: UnavailableError.
        """
        calls = [Call(lua.OWN, [self._keys.fence(number)], [clock_ms]) for number in partitions]
        answers = await self._scripts.run(calls)
        for answer in answers:
            if isinstance(answer, RedisError):
                raise UnavailableError(f"Redis ({answer})", CALL_TIMEOUT_S) from answer
        return [int(answer) for answer in answers]

    async def claim(self, decoded: DecodedRequest, *, token: int, may_create: bool) -> Claim:
        """claim: what an earlier owner got done, which it is fenced off from.

        `may_create`: this worker holds the lease. Raises: UnavailableError.
        """
        args: list[str | int] = [
            token,
            source_of(decoded),
            decoded.session_id,
            self._ttl_ms,
            int(may_create),
            int(decoded.default_id),
            self._worker_id,
        ]
        keys = [
            self._keys.journal(decoded.tenant, decoded.request_id),
            self._keys.cancel(decoded.tenant, decoded.request_id),
        ]
        answer = await self._scripts.run_one(Call(lua.CLAIM, keys, args))
        kind = ClaimKind(answer[0].decode())
        if kind not in (ClaimKind.CREATED, ClaimKind.RESUMED):
            return Claim(kind)
        fields = answer[1]
        try:
            entry = decode_entry(dict(zip(fields[::2], fields[1::2], strict=True)))
        except (KeyError, TypeError, ValueError, struct.error) as problem:
            log.warning("journal unreadable", request_id=decoded.request_id, problem=repr(problem))
            return Claim(ClaimKind.UNREADABLE)
        return Claim(kind, entry)

    async def flush(self, flushes: Sequence[tuple[Generation, Flush]]) -> list[FlushResult]:
        """flush: append every generation's new tokens, in one round trip.

        Never raises for Redis.
        """
        calls = [self._flush_call(generation, flush) for generation, flush in flushes]
        try:
            answers = await self._scripts.run(calls)
        except UnavailableError:
            return [FlushResult.AWAY] * len(calls)
        return [
            FlushResult.AWAY if isinstance(answer, RedisError) else FlushResult(answer.decode())
            for answer in answers
        ]

    def _flush_call(self, generation: Generation, flush: Flush) -> Call:
        args: list[bytes | str | int] = [
            generation.token,
            source_of(generation.decoded),
            flush.ids_kept,
            pack(flush.new_ids),
            flush.bounds_kept,
            pack(flush.new_bounds),
            flush.confirmed,
            *encode_start(flush.start),
            encode_ending(flush.ending),
            self._ttl_ms,
            generation.attempt,
        ]
        return Call(lua.FLUSH, [self._key(generation)], args)

    async def adopt(
        self, generation: Generation, entry: JournalEntry, *, may_create: bool
    ) -> FlushResult:
        """Write the whole journal: over an older owner's or, with the lease, where there is none.

        Returns OK, CANCELLED (written), FENCED, ABSENT (no journal and no lease) or AWAY.
        """
        args: list[bytes | str | int] = [
            generation.token,
            entry.attempt,
            source_of(generation.decoded),
            generation.decoded.session_id,
            pack(entry.ids),
            pack(entry.bounds),
            entry.confirmed,
            *encode_start(entry.start),
            encode_ending(entry.ending),
            self._ttl_ms,
            int(may_create),
            self._worker_id,
        ]
        try:
            answer = await self._scripts.run_one(Call(lua.ADOPT, self._keys_of(generation), args))
        except UnavailableError:
            return FlushResult.AWAY
        return FlushResult(answer.decode())

    async def confirm(self, generation: Generation) -> ConfirmResult:
        """confirm: everything is acknowledged; is the journal still mine?

        Raises: UnavailableError.
        """
        args: list[bytes | str | int] = [
            generation.token,
            source_of(generation.decoded),
            generation.acknowledged,
            self._ttl_ms,
        ]
        answer = await self._scripts.run_one(Call(lua.CONFIRM, [self._key(generation)], args))
        return ConfirmResult(answer.decode())

    async def note_failures(self, generation: Generation, failures: int, *, alone: bool) -> None:
        """What the next owner must know should this worker end; without effect if that one has it.

        Raises: UnavailableError.
        """
        args: list[str | int] = [generation.token, failures, "1" if alone else ""]
        await self._scripts.run_one(Call(lua.NOTE_FAILURES, [self._key(generation)], args))

    async def cancel(self, *, tenant: str, request_id: str, session_id: str) -> None:
        """Ask for a generation's end, whoever has it; an early cancel waits for its request.

        Delivery: idempotent. Raises: UnavailableError.
        """
        keys = [self._keys.journal(tenant, request_id), self._keys.cancel(tenant, request_id)]
        await self._scripts.run_one(Call(lua.CANCEL, keys, [session_id, EARLY_CANCEL_TTL_MS]))

    async def cancelled(self, generations: Sequence[Generation]) -> list[bool]:
        """Whose end is asked for: for generations that have nothing to flush.

        Raises: UnavailableError.
        """
        calls = [Call(lua.IS_CANCELLED, [self._key(one)], [one.token]) for one in generations]
        return [answer == 1 for answer in await self._scripts.run(calls)]

    def _key(self, generation: Generation) -> str:
        return self._keys.journal(generation.decoded.tenant, generation.decoded.request_id)

    def _keys_of(self, generation: Generation) -> list[str]:
        decoded = generation.decoded
        return [self._key(generation), self._keys.cancel(decoded.tenant, decoded.request_id)]


def source_of(decoded: DecodedRequest) -> str:
    """What tells a redelivery from a second record with the same request id.

    The timestamp is part of it: a topic that was made anew counts its offsets from 0 again.
    """
    record = decoded.record
    return f"{record.topic}/{record.partition}/{record.offset}/{record.timestamp_ms}"
