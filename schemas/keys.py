"""Redis keys. Every name has one place; parts that come from clients are percent-quoted.

Keys that one Lua call touches together share the hash tag `{…}`, so they live in one cluster slot.
"""

from dataclasses import dataclass
from urllib.parse import quote


def _tag(tenant: str, name: str) -> str:
    return "{" + quote(tenant, safe="") + "/" + quote(name, safe="") + "}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one pipeline: `prefix` is its topic prefix."""

    prefix: str = "headrace"

    def fence(self, partition: int) -> str:
        """The last fencing token taken for a request partition (string, integer)."""
        return f"{self.prefix}:fence:{partition}"

    def journal(self, tenant: str, request_id: str) -> str:
        """The generation journal of a request (hash)."""
        return f"{self.prefix}:journal:{_tag(tenant, request_id)}"

    def cancel(self, tenant: str, request_id: str) -> str:
        """A cancel that came before its request was read: the session it names (string)."""
        return f"{self.prefix}:cancel:{_tag(tenant, request_id)}"

    def session(self, tenant: str, session_id: str) -> str:
        """The stored conversation (hash)."""
        return f"{self.prefix}:session:{_tag(tenant, session_id)}"

    def kv_block(self, fingerprint: str, kv_format: str, block_hash: bytes) -> str:
        """The KV state of one block of tokens (string), named by the hash of all up to its end.

        The tenant is part of the hash. Models and formats have keys of their own, so that workers
        of two versions do not overwrite each other's.
        """
        model = f"{quote(fingerprint, safe='')}:{quote(kv_format, safe='')}"
        return f"{self.prefix}:kv:{model}:{{{block_hash.hex()}}}"

    def worker(self, worker_id: str) -> str:
        """Until when a worker counts as alive (string, ms of Redis's clock)."""
        return f"{self.prefix}:worker:{quote(worker_id, safe='')}"

    @property
    def probe(self) -> str:
        """Written to see whether Redis takes writes."""
        return f"{self.prefix}:probe"
