"""How many things are open at once, for each tenant and in all. Plain counts, no waiting."""

from collections import Counter

from headrace.schemas.errors import RateLimitedError

RETRY_AFTER_S = 1
"""Nobody knows when one of those that are open ends."""


class OpenCalls:
    """A bound for all, and one for each tenant, so that none takes everything."""

    def __init__(self, what: str, *, max_open: int, max_per_tenant: int) -> None:
        """`what` is counted, in the plural; errors say it."""
        self._what, self._max_open, self._max_per_tenant = what, max_open, max_per_tenant
        self._open: Counter[str] = Counter()

    def take(self, tenant: str) -> None:
        """Count one more. Raises: RateLimitedError, and nothing is counted."""
        if self.num_open >= self._max_open:
            self._refuse(f"{self._max_open} {self._what} are open here already")
        if self._open[tenant] >= self._max_per_tenant:
            self._refuse(f"{self._max_per_tenant} {self._what} of this tenant are open here")
        self._open[tenant] += 1

    def give_back(self, tenant: str) -> None:
        """Count one less."""
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    @property
    def num_open(self) -> int:
        """Of all tenants."""
        return self._open.total()

    def _refuse(self, text: str) -> None:
        raise RateLimitedError(text, retry_after_s=RETRY_AFTER_S, limit="open")
