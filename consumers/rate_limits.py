"""What each tenant may use in a minute, and what it has used: token buckets, settled by the log.

Sans I/O: time is handed in. A gateway charges what it admits, and hears in the response log what
became of it and what was answered for others; so gateways side by side keep one account without a
store. What is in flight elsewhere is known here by its first event only.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.schemas.errors import ErrorCode, RateLimitedError, RequestError

MINUTE_S = 60.0

REMEMBERED_S = 3_600.0
"""How long a request id is known: longer than any answer takes, and well below the day for which
workers know it, after which it is answered again.
"""

MAX_REMEMBERED = 10_000
"""Request ids of one tenant, 3 MB. One that is forgotten while it runs is charged twice."""

MAX_FREE_REPEATS = 5
"""Times that an id may be sent again for nothing; more would be a free way to write records."""

SWEEP_INTERVAL_S = 60.0

ROUNDING_S = 1e-6
"""What is left of a wait that was kept: sums of floats are not exact."""


class Limits(NamedTuple):
    """Per minute; None: as many as it likes."""

    requests: int | None = None
    tokens: int | None = None

    def or_else(self, other: "Limits") -> "Limits":
        """`other` where we say nothing."""
        return Limits(self.requests or other.requests, self.tokens or other.tokens)


@dataclass(slots=True)
class Bucket:
    """What was spent and has not been made up for by time.

    NOTE: it knows no limit. So a limit that changes needs no conversion, and an unused account is
    like a new one. 0 <= spent, and spent <= limit after each charge that was admitted.
    """

    spent: float = 0.0
    _at_s: float = 0.0

    def advance(self, limit: int | None, now_s: float) -> None:
        """Let time pass: a whole limit a minute. Without one nothing is owed."""
        passed_s = max(0.0, now_s - self._at_s)
        made_up = self.spent if limit is None else passed_s * limit / MINUTE_S
        self.spent = max(0.0, self.spent - made_up)
        self._at_s = max(self._at_s, now_s)

    def wait_s(self, cost: float, limit: int) -> float:
        """How long until `cost` fits; 0 if it does now."""
        wait_s = (self.spent + cost - limit) * MINUTE_S / limit
        return wait_s if wait_s > ROUNDING_S else 0.0

    def charge(self, cost: float) -> None:
        """Add `cost`, or give back a negative one."""
        self.spent = max(0.0, self.spent + cost)


@dataclass(slots=True)
class _Known:
    """A request id that has been charged; `reserved` tokens until its end is seen."""

    since_s: float
    reserved: int = 0
    is_over: bool = False
    num_repeats: int = 0


@dataclass(slots=True)
class _Account:
    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    known: OrderedDict[str, _Known] = field(default_factory=OrderedDict)
    limits: Limits = field(default_factory=Limits)

    def charge(self, *, requests: int = 0, tokens: int = 0) -> None:
        """What is not limited now is not counted, so that it is not owed under a later limit."""
        if self.limits.requests is not None:
            self.requests.charge(requests)
        if self.limits.tokens is not None:
            self.tokens.charge(tokens)

    def advance(self, limits: Limits, now_s: float) -> None:
        """Bring it up to now, under `limits`."""
        self.limits = limits
        self.requests.advance(limits.requests, now_s)
        self.tokens.advance(limits.tokens, now_s)
        while self.known and self._is_old(next(iter(self.known.values())), now_s):
            self.known.popitem(last=False)

    def _is_old(self, oldest: _Known, now_s: float) -> bool:
        return len(self.known) > MAX_REMEMBERED or now_s - oldest.since_s > REMEMBERED_S


class Standing(NamedTuple):
    """How one limit stands: `reset_s` until all of it is there again."""

    limit: int
    remaining: int
    reset_s: float


class RateLimits:
    """The accounts of all tenants that have limits. `limits_of` None: no tenant of ours."""

    def __init__(self, limits_of: Callable[[str], Limits | None]) -> None:
        self._limits_of = limits_of
        self._accounts: dict[str, _Account] = {}
        self._swept_s = 0.0

    def admit(self, tenant: str, request_id: str, *, num_tokens: int, now_s: float) -> bool:
        """Charge a call that may use `num_tokens`; whether that was done: an id that is known is
        not charged again.

        Raises: RateLimitedError; RequestError `invalid_value` for what never fits. Then nothing is
        charged.
        """
        account = self._account(tenant, now_s)
        if account is None:
            return False
        known = account.known.get(request_id)
        if known is not None and known.num_repeats < MAX_FREE_REPEATS:
            known.num_repeats += 1
            return False
        is_free = known is not None or account.limits.tokens is None
        cost = 0 if is_free else num_tokens
        _check(account, cost)
        account.charge(requests=1, tokens=cost)
        if known is not None:
            return False
        account.known[request_id] = _Known(now_s, reserved=cost)
        return True

    def withdraw(self, tenant: str, request_id: str, *, now_s: float) -> None:
        """Give back what `admit` charged: the request was not written, as far as we know.

        If it was, its events are charged as those of any other.
        """
        account = self._account(tenant, now_s)
        known = account.known.pop(request_id, None) if account is not None else None
        if account is not None and known is not None and not known.is_over:
            account.charge(requests=-1, tokens=-known.reserved)

    def began(self, tenant: str, request_id: str, *, now_s: float) -> None:
        """The request's first event was seen: it counts, wherever it came in."""
        account = self._account(tenant, now_s)
        if account is not None:
            _see(account, request_id, now_s)

    def ended(self, tenant: str, request_id: str, *, num_tokens: int, now_s: float) -> None:
        """The request's last event was seen: what it used takes the place of what was reserved."""
        account = self._account(tenant, now_s)
        if account is None:
            return
        known = _see(account, request_id, now_s)
        if not known.is_over:
            account.charge(tokens=num_tokens - known.reserved)
            known.reserved, known.is_over = 0, True

    def standings(self, tenant: str, *, now_s: float) -> Mapping[str, Standing]:
        """How `requests` and `tokens` stand, as far as they are limited."""
        account = self._account(tenant, now_s)
        if account is None:
            return {}
        pairs = (
            ("requests", account.limits.requests, account.requests),
            ("tokens", account.limits.tokens, account.tokens),
        )
        return {
            name: Standing(
                limit, max(0, math.floor(limit - bucket.spent)), bucket.spent * MINUTE_S / limit
            )
            for name, limit, bucket in pairs
            if limit is not None
        }

    @property
    def num_accounts(self) -> int:
        """Tenants that are remembered."""
        return len(self._accounts)

    def _account(self, tenant: str, now_s: float) -> _Account | None:
        """The account, brought up to now; None for who has no limits."""
        limits = self._limits_of(tenant)
        if limits is None or limits == Limits():
            return None
        self._sweep(now_s)
        account = self._accounts.setdefault(tenant, _Account())
        account.advance(limits, now_s)
        return account

    def _sweep(self, now_s: float) -> None:
        """Forget tenants whose keys are gone."""
        if now_s - self._swept_s < SWEEP_INTERVAL_S:
            return
        self._swept_s = now_s
        for tenant in [one for one in self._accounts if self._limits_of(one) in (None, Limits())]:
            del self._accounts[tenant]


def _see(account: _Account, request_id: str, now_s: float) -> _Known:
    known = account.known.get(request_id)
    if known is None:
        known = account.known[request_id] = _Known(now_s)
        account.charge(requests=1)
    return known


def _check(account: _Account, cost: int) -> None:
    """Raises: as `RateLimits.admit`."""
    limits, waits_s = account.limits, {}
    if limits.tokens is not None:
        if cost > limits.tokens:
            text = (
                f"prompt and answer may need {cost} tokens; this tenant has {limits.tokens} "
                "a minute: ask for fewer"
            )
            raise RequestError(ErrorCode.INVALID_VALUE, text, "max_tokens")
        waits_s["tokens"] = account.tokens.wait_s(cost, limits.tokens)
    if limits.requests is not None:
        waits_s["requests"] = account.requests.wait_s(1, limits.requests)
    name = max(waits_s, key=lambda one: waits_s[one], default=None)
    if name is not None and waits_s[name] > 0:
        limit = getattr(limits, name)
        text = f"this tenant's limit on {name} a minute is {limit}"
        raise RateLimitedError(text, retry_after_s=math.ceil(waits_s[name]), limit=name)
