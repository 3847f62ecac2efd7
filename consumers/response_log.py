"""The response log: one consumer of the responses topic, fanned out to local readers.

Owns the registry of readers and their life. Has no consumer group: every process that reads sees
every event, and nothing piles up at the broker (cases I11). The past comes from memory
(`recent_log`) or from a shared reading of Kafka (`shared_past`); `replay_start` says where.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable

from headrace.consumers.cursor import parse_cursor, resume_gap
from headrace.consumers.live_reader import LiveReader
from headrace.consumers.log_bounds import LogBounds
from headrace.consumers.log_event import LogEvent, Wanted
from headrace.consumers.recent_log import RecentLog
from headrace.consumers.replay import LogReplay
from headrace.consumers.replay_start import REACH_TIMEOUT_S, ReplayStart, patience_s
from headrace.consumers.shared_past import SharedPast
from headrace.consumers.subscription import SlowReaderError, Subscription
from headrace.consumers.waiting_requests import WaitingRequests
from headrace.schemas.errors import UnavailableError
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import OwnedTask
from headrace.schemas.topics import partition_of

__all__ = ["LogEvent", "ResponseLog", "SlowReaderError", "Subscription"]

START_TIMEOUT_S = 30.0
"""For the first positions: covers a broker that starts at the same time as we do."""


class ResponseLog:
    """Live events of all partitions, for any number of local subscriptions.

    `start` and `stop` frame its life; between them one task reads. Delivery: everything that the
    log has from a subscription's start on, in order, repeats included (readers drop them by
    contract §3).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listeners: list[Callable[[LogEvent], None]] = []
        self._recent = RecentLog(settings.recent_log_mb * 2**20)
        self._reader = LiveReader(
            settings, self._hand_out, recent=self._recent, on_cut=self._end_cut_off
        )
        self._past = SharedPast(settings)
        self._bounds = LogBounds(settings)
        self._start = ReplayStart(self._reader, self._recent, self._bounds)
        self._waiting = WaitingRequests(settings)
        self._by_session: dict[tuple[str, str], set[Subscription]] = defaultdict(set)
        self._by_request: dict[tuple[str, str], set[Subscription]] = defaultdict(set)
        self._task = OwnedTask("response-log")

    def show(self, on_event: Callable[[LogEvent], None]) -> None:
        """Show `on_event` every live event from now on, whoever reads."""
        self._listeners.append(on_event)

    @property
    def ready(self) -> bool:
        """Whether live events come: started, still reading, and the brokers answer."""
        return self.is_running and self._reader.brokers_answer

    @property
    def is_running(self) -> bool:
        """Whether readers can subscribe: every position is known. Brokers may be away for now."""
        return self._task.is_running and self._reader.started.is_set()

    @property
    def num_broken_events(self) -> int:
        """Records that held no event, since the start."""
        return self._reader.num_broken_events

    @property
    def num_subscriptions(self) -> int:
        """Readers now."""
        return len(self._subscriptions)

    @property
    def num_readers_of_the_past(self) -> int:
        """Those for whom Kafka is read, now."""
        return self._past.num_readers

    @property
    def recent_seconds(self) -> float:
        """How far back the recent log reaches, at least."""
        return self._recent.reach_s(time.time_ns() // 1_000_000)

    @property
    def _subscriptions(self) -> list[Subscription]:
        groups = [*self._by_session.values(), *self._by_request.values()]
        return [subscription for group in groups for subscription in group]

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Begin to read at the end of the log; returns once every partition's position is known.

        Raises: UnavailableError when that takes longer than `timeout_s`; then nothing runs.
        Cancel: safe, nothing runs.
        """
        self._task.start(self._read())
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
        try:
            await self._task.stop()
        finally:
            await self._bounds.close()
            await self._waiting.close()

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
            if cursor is not None:
                await self._resume(subscription, cursor)
            elif from_start or starting_after is not None:
                await self._begin_early(subscription)
            else:
                self._register(subscription)

        wanted = Wanted(tenant, session_id, request_id)
        return Subscription(wanted, enter=enter, leave=self._unregister)

    def check_running(self) -> None:
        """Raises: UnavailableError before every position is known, and after the end."""
        if not self.is_running:
            raise UnavailableError("the response log", 0.0)

    async def may_be_waiting(self, tenant: str, request_id: str) -> bool:
        """Whether a request without an event can still get one. After False, what was written of it
        before the call was handed on.

        Raises: UnavailableError. Cancel: safe, it only reads.
        """
        if await self._waiting.may_be_waiting(tenant, request_id):
            return True
        spans = await self._bounds.spans()
        ends = {number: spans[number].end for number in self._reader.positions if number in spans}
        await self._reader.reach(ends, REACH_TIMEOUT_S)
        return False

    def _register(self, subscription: Subscription) -> None:
        self.check_running()
        self._group_of(subscription.wanted).add(subscription)

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
        for listener in self._listeners:
            listener(event)
        for groups, name in (
            (self._by_session, event.session_id),
            (self._by_request, event.request_id),
        ):
            for subscription in groups.get((event.tenant, name), ()):
                subscription.offer(event)
                if isinstance(subscription.replay, LogReplay):
                    subscription.replay.notice()  # it may make reading the past needless

    def _end_cut_off(self, partition: int) -> None:
        """End who may have missed something: the log lost it before it was read."""
        self._bounds.forget()
        gap = resume_gap("the log was cut off while it was read")
        for subscription in self._subscriptions:
            if partition in (subscription.partitions or self._home_of(subscription.wanted)):
                subscription.fail(gap)
                if isinstance(subscription.replay, LogReplay):
                    subscription.replay.notice(gap)

    async def _read(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reader.run(), name="response-log.live")
                tasks.create_task(self._past.run(), name="response-log.past")
        finally:
            for subscription in self._subscriptions:
                subscription.fail(UnavailableError("the response log", 0.0))

    async def _resume(self, subscription: Subscription, cursor_text: str) -> None:
        cursor = parse_cursor(cursor_text)
        self.check_running()
        await self._start.check(cursor)
        subscription.floor = {cursor.partition: cursor.offset + 1}
        replay = self._join(subscription, [{cursor.partition: cursor.offset}])
        subscription.resumed_after = await replay.event_at(cursor.partition)
        subscription.cursor = cursor_text

    async def _begin_early(self, subscription: Subscription) -> None:
        self.check_running()
        wanted = subscription.wanted
        starts = await self._start.early(wanted, self._home_of(wanted))
        self._join(subscription, starts, patience_s=patience_s(wanted))

    def _join(
        self,
        subscription: Subscription,
        starts: list[dict[int, int]],
        *,
        patience_s: float = 0.0,
    ) -> LogReplay:
        """From now on live; before that from `starts`. NOTE: in one step, so that no event is
        between.
        """
        self._register(subscription)
        targets = {number: self._reader.positions[number] for number in starts[0]}
        subscription.partitions = set(targets)
        subscription.move_targets = lambda: targets.update(
            {number: self._reader.positions[number] for number in targets}
        )
        replay = LogReplay(
            subscription.wanted,
            starts,
            targets,
            self._recent,
            self._past,
            patience_s=patience_s,
        )
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
