"""The response log: one consumer of the responses topic, fanned out to local readers.

Owns the registry of readers and where each one starts. Has no consumer group: every process that
reads sees every event, and nothing piles up at the broker (cases I11).
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from headrace.consumers.cursor import parse_cursor
from headrace.consumers.live_reader import LiveReader
from headrace.consumers.log_event import LogEvent, Wanted
from headrace.consumers.replay import LogReplay
from headrace.consumers.subscription import SlowReaderError, Subscription
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.request_id import time_of
from headrace.schemas.settings import Settings
from headrace.schemas.topics import partition_of

__all__ = ["LogEvent", "ResponseLog", "SlowReaderError", "Subscription"]

START_TIMEOUT_S = 30.0
"""For the first positions: covers a broker that starts at the same time as we do."""

MAX_REPLAYS = 32
"""Temporary consumers at once (3 MB each); more readers of the past wait their turn."""

REPLAY_WAIT_S = 10.0
"""After this wait for a turn, a reader is told that we are overloaded."""


class ResponseLog:
    """Live events of all partitions, for any number of local subscriptions.

    `start` and `stop` frame its life; between them one task reads. Delivery: everything that the
    log has from a subscription's start on, in order, repeats included (readers drop them by
    contract §3).
    """

    def __init__(
        self, settings: Settings, *, on_event: Callable[[LogEvent], None] | None = None
    ) -> None:
        """`on_event`: is shown every live event, whoever reads."""
        self._settings, self._on_event = settings, on_event
        self._reader = LiveReader(settings, self._hand_out)
        self._by_session: dict[tuple[str, str], set[Subscription]] = defaultdict(set)
        self._by_request: dict[tuple[str, str], set[Subscription]] = defaultdict(set)
        self._replays = asyncio.Semaphore(MAX_REPLAYS)
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether live events come: started, still reading, and the brokers answer."""
        return self._running and self._reader.brokers_answer

    @property
    def num_broken_events(self) -> int:
        """Records that held no event, since the start."""
        return self._reader.num_broken_events

    @property
    def num_subscriptions(self) -> int:
        """Readers now."""
        groups = [*self._by_session.values(), *self._by_request.values()]
        return sum(len(group) for group in groups)

    @property
    def _running(self) -> bool:
        return self._task is not None and not self._task.done() and self._reader.started.is_set()

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Begin to read at the end of the log; returns once every partition's position is known.

        Raises: UnavailableError when that takes longer than `timeout_s`; then nothing runs.
        Cancel: safe, nothing runs.
        """
        if self._task is not None:
            raise RuntimeError("the response log is started already")
        # NOTE: this object's one task. `stop` awaits it and raises what ended it.
        self._task = asyncio.create_task(self._read(), name="response-log")
        try:
            async with asyncio.timeout(timeout_s):
                await self._reader.started.wait()
        except TimeoutError as problem:
            await self.stop()
            raise UnavailableError(
                f"Kafka (topic {self._settings.topics.responses})", timeout_s
            ) from problem
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the reading and all subscriptions (they raise UnavailableError). Safe to call twice.

        Raises: what ended the reading before, if anything did.
        """
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (problem := task.exception()) is not None:
            raise problem

    def follow(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        session_id: str | None = None,
        request_id: str | None = None,
        starting_after: int | None = None,
        cursor: str | None = None,
        from_start: bool = False,
    ) -> Subscription:
        """A reader of a session, a request, or a request in a session; live only by default.

        `starting_after` (a sequence number) and `from_start` begin where the request can have begun
        and hand on every event from there, also those the reader has; `cursor` begins right after
        its event. Entering it raises RequestError `resume_gap` / `invalid_value`, or
        UnavailableError.
        """

        async def enter(subscription: Subscription) -> None:
            if not self._running:
                raise UnavailableError("the response log", 0.0)
            self._group_of(wanted).add(subscription)
            if cursor is not None:
                await self._resume(subscription, cursor)
            elif from_start or starting_after is not None:
                await self._begin_early(subscription)

        wanted = Wanted(tenant, session_id, request_id)
        return Subscription(wanted, enter=enter, leave=self._unregister)

    def _group_of(self, wanted: Wanted) -> set[Subscription]:
        if wanted.request_id is not None:
            return self._by_request[wanted.tenant, wanted.request_id]
        return self._by_session[wanted.tenant, wanted.session_id or ""]

    def _unregister(self, subscription: Subscription) -> None:
        wanted = subscription.wanted
        group = self._group_of(wanted)
        group.discard(subscription)
        if not group and wanted.request_id is not None:
            del self._by_request[wanted.tenant, wanted.request_id]
        elif not group:
            del self._by_session[wanted.tenant, wanted.session_id or ""]

    def _hand_out(self, event: LogEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        for groups, name in (
            (self._by_session, event.session_id),
            (self._by_request, event.request_id),
        ):
            for subscription in groups.get((event.tenant, name), ()):
                subscription.offer(event)

    async def _read(self) -> None:
        try:
            await self._reader.run()
        finally:
            for group in [*self._by_session.values(), *self._by_request.values()]:
                for subscription in group:
                    subscription.fail(UnavailableError("the response log", 0.0))

    async def _resume(self, subscription: Subscription, cursor_text: str) -> None:
        cursor = parse_cursor(cursor_text)
        subscription.partitions = {cursor.partition}
        subscription.floor = {cursor.partition: cursor.offset + 1}
        targets = self._live_targets(subscription)
        replay = await self._open_replay(subscription)
        subscription.resumed_after = await replay.begin_after(cursor, targets)
        subscription.cursor = cursor_text

    async def _begin_early(self, subscription: Subscription) -> None:
        wanted = subscription.wanted
        subscription.partitions = self._home_of(wanted)
        targets = self._live_targets(subscription)
        replay = await self._open_replay(subscription)
        time_ms = time_of(wanted.request_id) if wanted.request_id else None
        await replay.begin_at(subscription.partitions, targets, time_ms=time_ms)

    def _live_targets(self, subscription: Subscription) -> dict[int, int]:
        """What is live from now on, by partition; the replay ends there."""
        targets = dict(self._reader.positions)
        subscription.move_targets = lambda: targets.update(self._reader.positions)
        return targets

    async def _open_replay(self, subscription: Subscription) -> LogReplay:
        try:
            async with asyncio.timeout(REPLAY_WAIT_S):
                await self._replays.acquire()
        except TimeoutError:
            text = "too many readers of the past at once; try again"
            raise RequestError(ErrorCode.OVERLOADED, text) from None
        try:
            replay = await LogReplay.open(
                self._settings, subscription.wanted, on_stop=self._replays.release
            )
        except BaseException:
            self._replays.release()
            raise
        subscription.replay = replay
        return replay

    def _home_of(self, wanted: Wanted) -> set[int]:
        """Where the events can be. NOTE: a request without a key has its id as its session,
        anywhere.
        """
        session, partitions = wanted.session_id, set(self._reader.positions)
        keyless = f"{self._settings.topics.requests}-"
        if session is None or session == wanted.request_id or session.startswith(keyless):
            return partitions
        return {partition_of(session.encode(), len(partitions))}
