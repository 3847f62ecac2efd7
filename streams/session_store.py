"""The stored conversation in Redis: what a session's next turn is put behind.

Token ids are kept as they were generated: text that is tokenised again may give other ids.
"""

from dataclasses import dataclass, field

import orjson

from headrace.schemas.keys import Keys
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


class SessionStore:
    """The conversations of one pipeline."""

    def __init__(self, scripts: Scripts, keys: Keys, *, ttl_s: int) -> None:
        self._scripts, self._keys = scripts, keys
        self._ttl_ms = ttl_s * 1000

    async def load(self, tenant: str, session_id: str) -> SessionRecord:
        """The conversation, empty if there is none. Raises: UnavailableError."""
        keys = [self._keys.session(tenant, session_id)]
        found = await self._scripts.run_one(Call(lua.LOAD_SESSION, keys, [self._ttl_ms]))
        version, turns, messages, ids = found
        return SessionRecord(
            version=int(version or 0),
            turns=int(turns or 0),
            messages=orjson.loads(messages) if messages else [],
            ids=unpack(ids or b""),
        )

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
        ]
        keys = [self._keys.session(decoded.tenant, decoded.session_id)]
        answer = await self._scripts.run_one(Call(lua.STORE_SESSION, keys, args))
        return str(answer.decode())

    async def delete(self, tenant: str, session_id: str) -> None:
        """Forget the conversation; a turn that runs now is not stored. Raises: UnavailableError."""
        keys = [self._keys.session(tenant, session_id)]
        await self._scripts.run_one(Call(lua.DELETE_SESSION, keys, [self._ttl_ms]))
