"""The stored conversation in Redis: what a session's next turn is put behind.

Token ids are kept as they were generated: text that is tokenised again may give other ids.

While Redis is away, turns that are answered without it go on from what this owner remembers of the
session, and are stored when it is back.
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field, replace

import orjson

from headrace.schemas.keys import Keys
from headrace.schemas.request import Record
from headrace.streams import lua
from headrace.streams.generation import Generation
from headrace.streams.journal_codec import pack, unpack
from headrace.streams.redis_scripts import Call, Scripts

ChatMessage = dict[str, str]
"""`role` and `content`, as the chat template takes it."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A conversation; `turns` counts its assistant messages, `version` its changes,
    deletions included.
    """

    version: int = 0
    turns: int = 0
    messages: list[ChatMessage] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return bool(self.ids)


MAX_REMEMBERED = 512
"""Conversations kept in memory, for the time that Redis is away."""


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """A turn that was answered while Redis was away."""

    generation: Generation
    record: SessionRecord
    read_version: int
    token: int


class SessionStore:
    """The conversations of one pipeline."""

    def __init__(self, scripts: Scripts, keys: Keys, *, ttl_s: int) -> None:
        self._scripts, self._keys = scripts, keys
        self._ttl_ms = ttl_s * 1000
        self._remembered: OrderedDict[tuple[str, str], SessionRecord] = OrderedDict()
        self._unsaved: defaultdict[tuple[str, str], list[_Unsaved]] = defaultdict(list)

    async def load(self, tenant: str, session_id: str) -> SessionRecord:
        """The conversation, empty if there is none. Raises: UnavailableError."""
        await self._save(tenant, session_id)
        keys = [self._keys.session(tenant, session_id)]
        found = await self._scripts.run_one(Call(lua.LOAD_SESSION, keys, [self._ttl_ms]))
        version, turns, messages, ids = found
        record = SessionRecord(
            version=int(version or 0),
            turns=int(turns or 0),
            messages=orjson.loads(messages) if messages else [],
            ids=unpack(ids or b""),
        )
        self._remember(tenant, session_id, record)
        return record

    def remembered(self, tenant: str, session_id: str) -> SessionRecord:
        """The conversation as this owner last saw it; empty if it never did."""
        return self._remembered.get((tenant, session_id), SessionRecord())

    def forget_remembered(self) -> None:
        """A partition was lost: another owner may add turns now."""
        self._remembered.clear()

    def _remember(self, tenant: str, session_id: str, record: SessionRecord) -> None:
        self._remembered[tenant, session_id] = record
        self._remembered.move_to_end((tenant, session_id))
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def store_later(
        self, generation: Generation, record: SessionRecord, *, read_version: int, token: int
    ) -> None:
        """Keep a turn until Redis is back. Delivery: lost if this process ends before."""
        session = (generation.decoded.tenant, generation.decoded.session_id)
        self._unsaved[session].append(_Unsaved(generation, record, read_version, token))
        self._remember(*session, replace(record, version=read_version + 1))

    async def save_all(self) -> None:
        """Store every turn that was kept. Raises: UnavailableError."""
        for session in list(self._unsaved):
            await self._save(*session)

    async def _save(self, tenant: str, session_id: str) -> None:
        waiting = self._unsaved.get((tenant, session_id))
        while waiting:
            turn = waiting[0]
            await self.store(
                turn.generation, turn.record, read_version=turn.read_version, token=turn.token
            )
            if waiting and waiting[0] is turn:  # another task may have stored it meanwhile
                waiting.pop(0)
        self._unsaved.pop((tenant, session_id), None)

    async def store(
        self, generation: Generation, record: SessionRecord, *, read_version: int, token: int
    ) -> str:
        """Store the conversation after a turn; `read_version` is what the turn was put behind.

        `token`: the newest of the partition's owner, never smaller than the generation's.

        Returns `ok`, `stored before` (this turn, by an earlier owner), `changed` (deleted
        meanwhile) or `fenced`. Delivery: idempotent by request id. Raises: UnavailableError.
        """
        decoded = generation.decoded
        args: list[bytes | str | int] = [
            token,
            decoded.record.partition,
            read_version,
            decoded.request_id,
            record.turns,
            orjson.dumps(record.messages),
            pack(record.ids),
            self._ttl_ms,
            decoded.record.offset,
            decoded.record.timestamp_ms,
        ]
        keys = [self._keys.session(decoded.tenant, decoded.session_id)]
        answer = (await self._scripts.run_one(Call(lua.STORE_SESSION, keys, args))).decode()
        if answer == "ok":
            stored = replace(record, version=read_version + 1)
            self._remember(decoded.tenant, decoded.session_id, stored)
        return str(answer)

    async def delete(
        self, tenant: str, session_id: str, *, tombstone: Record | None = None
    ) -> None:
        """Forget the conversation; a turn that runs now is not stored.

        Delivery: a `tombstone` that is read again does not delete the turns behind it.
        Raises: UnavailableError.
        """
        self._remembered.pop((tenant, session_id), None)
        args: list[bytes | str | int] = [self._ttl_ms]
        if tombstone is not None:
            args += [tombstone.partition, tombstone.offset, tombstone.timestamp_ms]
        keys = [self._keys.session(tenant, session_id)]
        await self._scripts.run_one(Call(lua.DELETE_SESSION, keys, args))
