"""Step 9 of one delivery: the last event is in the log; store the turn, confirm, be done."""

import asyncio
import time
from collections.abc import Callable

import structlog

from headrace.schemas.errors import RequestError, UnavailableError
from headrace.schemas.request import DecodedRequest
from headrace.streams.admission import Admission
from headrace.streams.claiming import POLL_INTERVAL_S, Outcome
from headrace.streams.generation import Generation
from headrace.streams.journal import ConfirmResult
from headrace.streams.parts import Parts
from headrace.streams.prefix_reuse import PrefixReuse
from headrace.streams.preparation import conversation_after
from headrace.streams.session_store import SessionRecord

log = structlog.get_logger(__name__)


class Finishing:
    """Stores a turn and confirms its journal. `is_fenced` asks whether a flush was refused."""

    def __init__(
        self,
        parts: Parts,
        decoded: DecodedRequest,
        admission: Admission,
        reuse: PrefixReuse,
        *,
        is_fenced: Callable[[], bool],
    ) -> None:
        self._parts, self._decoded = parts, decoded
        self._admission, self._reuse, self._is_fenced = admission, reuse, is_fenced

    async def store_session(self, generation: Generation, session: SessionRecord) -> None:
        """The conversation with this turn; a failed turn leaves nothing."""
        ending = generation.ending
        if ending is None or ending.error is not None or self._decoded.request is None:
            return
        try:
            # cancelled before its turn: its question stays
            start = generation.start or await self._admission.prepare(session)
            record = conversation_after(
                self._decoded, session, start, generation.ids, generation.text
            )
        except Exception as problem:
            # the answer is in the log; the session went on, was stored before, or cannot be encoded
            if not isinstance(problem, RequestError):
                log.exception("turn not stored", request_id=self._decoded.request_id)
            self._parts.metrics.sessions_unstored.labels("does not fit").inc()
            return
        answer = await self._keep_storing(generation, record, start.session_version)
        if answer in ("ok", "stored before"):
            self._reuse.keep(generation)
        else:
            self._parts.metrics.sessions_unstored.labels(answer).inc()

    async def _keep_storing(
        self, generation: Generation, record: SessionRecord, read_version: int
    ) -> str:
        while True:
            try:
                return await self._parts.sessions.store(
                    generation, record, read_version=read_version, token=self._token(generation)
                )
            except UnavailableError:
                if self._may_finish_alone(generation):
                    self._parts.sessions.store_later(
                        generation, record, read_version=read_version, token=self._token(generation)
                    )
                    return "ok"
                await self._parts.scripts.back()

    def _may_finish_alone(self, generation: Generation) -> bool:
        """Whether Redis need not be waited for: there is no journal that another could have."""
        return generation.has_no_journal and self._parts.ownership.came_since(self._decoded.record)

    def _token(self, generation: Generation) -> int:
        """The newest token of this owner: a turn before this one may have been stored under it."""
        assignment = self._parts.ownership.get(self._decoded.record.partition)
        return max(generation.token, assignment.token if assignment else 0)

    async def confirm(self, generation: Generation) -> Outcome | None:
        """confirm: is the journal still ours?

        None: it was lost, and a larger attempt is on its way.
        """
        while True:
            had_none = generation.has_no_journal
            try:
                result = await self._parts.journal.confirm(generation)
            except UnavailableError:
                if self._may_finish_alone(generation):
                    return self._finished(generation)
                await self._parts.scripts.back()
                continue
            if result is ConfirmResult.OK:
                return self._finished(generation)
            if result is ConfirmResult.FENCED:
                return Outcome.FENCED
            if had_none:  # it may have been adopted between this answer and now
                self._parts.flusher.touch(generation)  # adopts it, now that Redis is back
                await asyncio.sleep(POLL_INTERVAL_S)
                if self._is_fenced():
                    return Outcome.FENCED
                continue
            await self._parts.flusher.lose_journal(generation)
            await asyncio.sleep(POLL_INTERVAL_S)  # without the lease nothing has changed: ask again
            return None

    def _finished(self, generation: Generation) -> Outcome:
        metrics, ending = self._parts.metrics, generation.ending
        if ending is not None and ending.error is not None:
            metrics.failure.labels(ending.error.code.value).inc()
        elif ending is not None:
            metrics.success.labels(ending.finish_reason).inc()
        if generation.start is not None:
            metrics.prompt_tokens.inc(len(generation.start.prompt_ids))
        age_s = time.time() - self._decoded.record.timestamp_ms / 1000
        metrics.e2e_latency.observe(max(0.0, age_s))
        return Outcome.DELIVERED
