"""Whom the gateway lets in now: rate limits by tenant, and how many calls and sockets are open.

Owns the clock, the counts of refusals and what clients are told of their limits. The rules are in
`rate_limits` and `open_calls`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.consumers.lag_work import work_in
from headrace.consumers.log_event import LogEvent
from headrace.consumers.open_calls import OpenCalls
from headrace.consumers.rate_limits import Limits, RateLimits
from headrace.consumers.submission import Submission
from headrace.schemas.errors import HeadraceError, RateLimitedError
from headrace.schemas.reply import is_last, usage_of

LIMIT_HEADERS = tuple(
    f"x-ratelimit-{figure}-{limit}"
    for figure in ("limit", "remaining", "reset")
    for limit in Limits._fields
)
"""What `Admission.headers` may name."""


class Admission:
    """One for each gateway; every way in goes through it."""

    def __init__(
        self,
        limits_of: Callable[[str], Limits | None],
        metrics: GatewayMetrics,
        *,
        calls: OpenCalls,
        sockets: OpenCalls,
    ) -> None:
        self._limits, self._metrics = RateLimits(limits_of), metrics
        self.calls, self.sockets = calls, sockets

    @contextmanager
    def charged(self, tenant: str, call: Submission) -> Iterator[None]:
        """Charge `call`; what is raised inside says that it was not written: it costs nothing.

        Raises: RateLimitedError; RequestError for what its tenant's limits never let in.
        """
        work = work_in(call.body)
        cost = work.prompt_tokens + work.max_tokens
        with self.counted():
            charged = self._limits.admit(
                tenant, call.request_id, num_tokens=cost, now_s=time.monotonic()
            )
        try:
            yield
        except HeadraceError:
            if charged:
                self._limits.withdraw(tenant, call.request_id, now_s=time.monotonic())
            raise

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the refusals of what is asked for inside."""
        try:
            yield
        except RateLimitedError as problem:
            self._metrics.rate_limited.labels(problem.limit).inc()
            raise

    def see(self, event: LogEvent) -> None:
        """Take an event of the live log, whoever asked for it."""
        body = event.event
        if is_last(body):
            used = usage_of(body, "total_tokens") or 0  # one that failed costs nothing
            self._limits.ended(
                event.tenant, event.request_id, num_tokens=used, now_s=time.monotonic()
            )
        elif body["sequence_number"] == 0:
            self._limits.began(event.tenant, event.request_id, now_s=time.monotonic())

    def headers(self, tenant: str) -> dict[str, str]:
        """How the tenant's limits stand, in OpenAI's headers; empty where it has none."""
        found = {}
        for name, standing in self._limits.standings(tenant, now_s=time.monotonic()).items():
            found[f"x-ratelimit-limit-{name}"] = str(standing.limit)
            found[f"x-ratelimit-remaining-{name}"] = str(standing.remaining)
            found[f"x-ratelimit-reset-{name}"] = f"{standing.reset_s:.3f}s"
        return found
