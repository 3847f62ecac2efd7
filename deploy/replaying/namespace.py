"""Where a replay or a shadow lives: topics, group and Redis keys that are nobody else's.

Owns the names, making and removing them. Nothing whose name does not begin with the namespace's own
prefix is ever removed.
"""

from dataclasses import dataclass
from secrets import token_hex
from typing import Literal

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace.deploy.local_services import changed
from headrace.deploy.topics import delete_group, delete_topics, ensure_topics
from headrace.schemas.errors import HeadraceError, UnavailableError
from headrace.schemas.settings import Settings

REDIS_TIMEOUT_S = 10.0
_KEYS_AT_ONCE = 500


class NamespaceTakenError(HeadraceError):
    """Topics of this name are there already; they are not touched."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__(topics)
        self.topics = topics

    def __str__(self) -> str:
        return f"topic {self.topics[0]} is there already: choose another --id"


@dataclass(frozen=True, slots=True)
class Namespace:
    """`<live prefix>.<kind>-<id>`: the prefix of all names, and the name of the group."""

    live: Settings
    kind: Literal["replay", "shadow"]
    id: str

    @classmethod
    def new(
        cls, live: Settings, kind: Literal["replay", "shadow"], id_: str | None = None
    ) -> "Namespace":
        """One with this id, or one that nobody has used."""
        return cls(live, kind, id_ or token_hex(4))

    @property
    def prefix(self) -> str:
        return f"{self.live.topic_prefix}.{self.kind}-{self.id}"

    @property
    def settings(self) -> Settings:
        """Those of its workers: a shadow reads the live requests and answers here."""
        # the traces that its records name are those of the live requests
        own = {"group": self.prefix, "answer_prefix": self.prefix, "traces": "off"}
        if self.kind == "replay":
            own["topic_prefix"] = self.prefix
        return changed(self.live, **own)

    @property
    def worker_flags(self) -> str:
        """What a worker that somebody else starts must be told."""
        settings = self.settings
        names = ("topic_prefix", "answer_prefix", "group")
        return " ".join(f"--{n.replace('_', '-')} {getattr(settings, n)}" for n in names)

    @property
    def own_topics(self) -> list[str]:
        """Those that are removed with it."""
        topics = self.settings.topics
        names = (*topics.co_partitioned, topics.dlq)
        return [name for name in names if name.startswith(f"{self.prefix}.")]

    async def create(self, num_partitions: int) -> None:
        """Make its topics. Raises: NamespaceTakenError, UnavailableError, TopicsError."""
        done = await ensure_topics(self.settings, partitions=num_partitions)
        if taken := sorted(set(done.left) & set(self.own_topics)):
            raise NamespaceTakenError(taken)

    async def remove(self) -> None:
        """Remove its topics, its group and its keys; its workers must have ended.

        Raises: UnavailableError, TopicsError. Cancel: some may be left; calling it again does it.
        """
        await delete_topics(self.live, self.own_topics)
        await delete_group(self.live, self.prefix)
        await self._remove_keys()

    async def _remove_keys(self) -> None:
        client = Redis.from_url(self.live.redis, socket_timeout=REDIS_TIMEOUT_S)
        try:
            keys: list[bytes] = []
            async for key in client.scan_iter(f"{self.prefix}:*", count=1000):
                keys.append(key)
                if len(keys) == _KEYS_AT_ONCE:
                    await client.unlink(*keys)
                    keys.clear()
            if keys:
                await client.unlink(*keys)
        except RedisError as problem:
            raise UnavailableError(f"Redis ({problem})", REDIS_TIMEOUT_S) from problem
        finally:
            await client.aclose()
