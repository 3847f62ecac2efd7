"""One generation that an HTTP call waits for: subscribe, produce, follow, cancel if the client
leaves.

Knows nothing of HTTP. The order matters: the subscription stands before the request is written.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Self

import structlog

from headrace.consumers.context import Gateway
from headrace.consumers.log_event import LogEvent
from headrace.consumers.request_feed import RequestFeed
from headrace.consumers.submission import Submission
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError, UnavailableError
from headrace.schemas.reply import Seen

_log = structlog.get_logger(__name__)


class Generation:
    """An async context manager around the life of one produced request.

    Leaving it before the last event was read cancels the generation, unless it is a background one.
    """

    def __init__(
        self,
        gateway: Gateway,
        call: Submission,
        *,
        tenant: str,
        trace: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self.call = call
        self._gateway, self._tenant, self._trace = gateway, tenant, trace
        self._feed = RequestFeed(
            gateway.log,
            tenant=tenant,
            request_id=call.request_id,
            session_id=call.session_to_follow,
            live_only=not call.may_exist,
        )
        self._progress_s = time.monotonic()
        self._kept = call.background

    async def __aenter__(self) -> Self:
        """Raises: RequestError `rate_limited`; UnavailableError. Cancel: the request is cancelled
        too.
        """
        admission = self._gateway.admission
        with admission.counted():
            admission.calls.take(self._tenant)
        self._gateway.metrics.open_generations.inc()
        try:
            await self._feed.__aenter__()
            await submit(self._gateway, self.call, tenant=self._tenant, trace=self._trace)
        except asyncio.CancelledError:
            await self.__aexit__()
            raise
        except BaseException:
            await self._close()
            raise
        self._progress_s = time.monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self._feed.finished and not self._kept:
                call = self.call
                await abandon(self._gateway, call.request_id, call.session_id, tenant=self._tenant)
        finally:
            await self._close()

    async def _close(self) -> None:
        self._gateway.admission.calls.give_back(self._tenant)
        self._gateway.metrics.open_generations.dec()
        await self._feed.__aexit__()

    def keep(self) -> None:
        """Leaving does not cancel from now on: the client was told to go on reading elsewhere."""
        self._kept = True

    def fail(self, error: HeadraceError) -> None:
        """End the reading: `next` raises `error`, and leaving does not cancel."""
        self.keep()
        self._feed.fail(error)

    @property
    def finished(self) -> bool:
        """Whether the last event was read."""
        return self._feed.finished

    async def next(self) -> tuple[LogEvent, Seen] | None:
        """The next event that a reader keeps, with NEW or RESTART; None when a heartbeat is due.

        Raises: RequestError `resume_gap` (events are missing), `overloaded` (no event for too
            long); SlowReaderError; UnavailableError.
        """
        bounds = self._gateway.bounds
        found = await self._feed.next(min(bounds.heartbeat_s, bounds.no_progress_s))
        now_s = time.monotonic()
        if found is not None:
            self._progress_s = now_s
        elif now_s - self._progress_s >= bounds.no_progress_s:
            text = f"no worker wrote anything for {bounds.no_progress_s:g} s"
            raise RequestError(ErrorCode.OVERLOADED, text)
        return found


async def submit(
    gateway: Gateway, call: Submission, *, tenant: str, trace: Sequence[tuple[str, bytes]]
) -> None:
    """Charge the tenant and produce `call` within the bound; every way in ends here.

    Raises: RateLimitedError; RequestError where the tenant's limits never let it in;
    UnavailableError. Cancel: the charge stays, for the request may be written.
    """
    with gateway.admission.charged(tenant, call):
        writing = gateway.sink.submit(
            call.body, tenant=tenant, session_id=call.session_id, trace=trace
        )
        await _written(gateway, "request", writing)


async def cancel(gateway: Gateway, request_id: str, session_id: str, *, tenant: str) -> None:
    """Produce a cancel within the bound. Raises: UnavailableError."""
    writing = gateway.sink.cancel(request_id, session_id=session_id, tenant=tenant)
    await _written(gateway, "control", writing)


async def abandon(gateway: Gateway, request_id: str, session_id: str, *, tenant: str) -> None:
    """Cancel what its client has left; where Kafka does not answer, that is only logged."""
    gateway.metrics.abandoned.inc()
    try:
        await cancel(gateway, request_id, session_id, tenant=tenant)
    except UnavailableError as problem:  # it runs to its own end: costly, never wrong
        _log.warning("a generation was not cancelled", reason=str(problem))


async def forget(gateway: Gateway, session_id: str, *, tenant: str) -> None:
    """Have a conversation deleted; produced within the bound. Raises: UnavailableError."""
    await _written(gateway, "control", gateway.sink.delete_session(session_id, tenant=tenant))


async def _written(gateway: Gateway, what: str, writing: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(gateway.bounds.sink_s):
            await writing
    except TimeoutError as problem:
        raise UnavailableError(f"Kafka ({what})", gateway.bounds.sink_s) from problem
