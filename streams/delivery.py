"""The life of one request in this worker (docs/architecture.md, steps 4 to 9), as one task.

    claim -> wait for its turn -> prepare -> engine ... flush, publish ... -> confirm -> commit

What a generation *is* stands in generation.py; this file only moves it along.
"""

import asyncio
import time
from functools import partial

import structlog

from headrace.models.constraints import Grammar
from headrace.models.engine import EngineStoppedError
from headrace.models.request import EngineOutput, EngineRequest
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError, UndecodableError
from headrace.schemas.request import DecodedRequest
from headrace.streams.claiming import POLL_INTERVAL_S, Claimant, Outcome
from headrace.streams.generation import (
    Ending,
    Generation,
    JournalEntry,
    Standing,
    Start,
    TextStream,
)
from headrace.streams.journal import Claim, ClaimKind, ConfirmResult
from headrace.streams.parts import Parts
from headrace.streams.prefix_reuse import PrefixReuse
from headrace.streams.preparation import (
    conversation_after,
    expired,
    grammar_of,
    prepare,
    problem_of,
    sampling_of,
)
from headrace.streams.session_store import SessionRecord
from headrace.streams.stopwatch import Stopwatch

log = structlog.get_logger(__name__)

THREAD_ABOVE_BYTES = 32_768
"""Tokenising 0.98 MB took 1.7 to 3.1 s on a loaded machine: this much, some 0.1 s."""


class Delivery:
    """One record on its way to its last event."""

    def __init__(self, parts: Parts, decoded: DecodedRequest, place: asyncio.Event) -> None:
        self._parts, self.decoded, self._place = parts, decoded, place
        self.claimant = Claimant(
            decoded, parts.journal, parts.scripts, parts.ownership, parts.lease
        )
        self.generation: Generation | None = None
        self._stream: TextStream | None = None
        self._is_expected = False
        self._in_engine = False
        self._fenced = False
        self._cancel_wanted = False
        self._changed = asyncio.Event()
        self._stopwatch = Stopwatch(decoded.record.timestamp_ms, parts.metrics)
        self._reuse = PrefixReuse(parts, decoded)

    async def run(self) -> Outcome:
        """Deliver the answer; any outcome but NOT_OURS says that the record is finished.

        Cancel: the engine drops it; what is journaled is what the next owner goes on from.
        """
        try:
            while True:
                self._expect(True)
                outcome = await self._attempt()
                if outcome is not Outcome.FENCED:
                    return outcome
                self._parts.metrics.fenced.inc()
                self._drop()
                await self.claimant.ask_with_new_token()
        except EngineStoppedError:
            return Outcome.NOT_OURS  # draining, or dead: the next owner goes on
        finally:
            self._expect(False)
            self._drop()

    def _expect(self, is_expected: bool) -> None:
        """Whether the engine will soon have it, unless it is refused."""
        if is_expected is not self._is_expected:
            self._is_expected = is_expected
            self._parts.engine.expect(1 if is_expected else -1)

    async def _attempt(self) -> Outcome:
        found = await self.claimant.settle()
        if isinstance(found, Outcome):
            return found
        generation = self._begin(found) if isinstance(found, Generation) else self._resume(*found)
        if generation is None:
            return Outcome.DONE_BEFORE
        if self._cancel_wanted:
            self.cancel()
        self._parts.flusher.touch(generation)
        await self._wait_for_turn(generation)
        session = await self._load_session(generation)
        if generation.ending is None:
            await self._start(generation, session)
        self._expect(False)
        while await self._published(generation):
            await self._store_session(generation, session)
            outcome = await self._confirm(generation)
            if outcome is not None:
                return outcome
        return Outcome.FENCED

    # 4. claim

    def _begin(self, generation: Generation) -> Generation:
        self.generation = generation
        self._fenced = self._in_engine = False
        request = self.decoded.request
        self._stream = self._parts.engine.text_stream(tuple(request.stop) if request else ())
        return generation

    def _resume(self, claim: Claim, token: int) -> Generation | None:
        """A generation that goes on from what the journal holds; None: delivered already."""
        entry = claim.entry or JournalEntry(attempt=token)
        if entry.done:
            return None
        generation = self._begin(Generation(self.decoded, token=token, attempt=entry.attempt))
        assert self._stream is not None  # noqa: S101
        generation.restore(entry, self._stream)
        if claim.kind is ClaimKind.UNREADABLE:
            generation.standing = Standing.LOST
        if entry.start is not None:
            self._parts.metrics.resumed.inc()
        if entry.cancelled:
            self.cancel()
        return generation

    def _drop(self) -> None:
        """This worker does not go on with it."""
        if self.generation is not None:
            self._parts.engine.abort(self.generation.key)
            self._parts.flusher.forget(self.generation)
            self.generation = None
        self._reuse.release()

    # 5. prepare

    async def _wait_for_turn(self, generation: Generation) -> None:
        """Session order. A request that expires meanwhile is answered at once."""
        self._expect(self._place.is_set())
        try:
            async with asyncio.timeout(self._remaining_s(generation)):
                await self._place.wait()
        except TimeoutError:
            self._end(generation, Ending(error=expired()))
            await self._place.wait()
        self._expect(True)

    def _remaining_s(self, generation: Generation) -> float | None:
        request = self.decoded.request
        if request is None or request.ttl_ms is None or generation.start is not None:
            return None
        end_s = (self.decoded.record.timestamp_ms + request.ttl_ms) / 1000
        return max(0.0, end_s - time.time())

    async def _load_session(self, generation: Generation) -> SessionRecord:
        """The conversation; while Redis is away, a generation without a journal goes on from what
        this owner remembers of it.
        """
        while True:
            try:
                return await self._parts.sessions.load(self.decoded.tenant, self.decoded.session_id)
            except UnavailableError:
                if generation.standing is Standing.UNJOURNALED:
                    decoded = self.decoded
                    return self._parts.sessions.remembered(decoded.tenant, decoded.session_id)
                await self._parts.scripts.back()

    async def _start(self, generation: Generation, session: SessionRecord) -> None:
        try:
            if self.decoded.error is not None:
                raise self.decoded.error
            remaining_s = self._remaining_s(generation)
            if remaining_s == 0.0:
                raise expired()
            grammar = await self._grammar()
            if generation.start is None:
                generation.begin(await self._prepare(session))
            if generation.ending is None:  # else: it was cancelled meanwhile
                request = self._engine_request(generation, remaining_s, grammar)
                await self._reuse.fetch(request)
            if generation.ending is None:
                self._parts.engine.add(request)
                self._in_engine = True
        except EngineStoppedError:
            raise  # not this request's fault
        except RequestError as problem:
            await self._refuse(generation, problem, poison=isinstance(problem, UndecodableError))
        except Exception as problem:
            # the boundary of contract §5: what breaks on one request fails that request alone
            log.exception("request could not be prepared", request_id=self.decoded.request_id)
            text = f"the request could not be prepared: {type(problem).__name__}"
            refusal = RequestError(ErrorCode.INTERNAL_ERROR, text)
            await self._refuse(generation, refusal, poison=True)

    async def _prepare(self, session: SessionRecord) -> Start:
        """Long prompts in a thread: tokenising one must not hold up the streams of the others."""
        work = partial(prepare, self.decoded, session, self._parts.model, now_s=time.time())
        is_long = len(self.decoded.record.value or b"") >= THREAD_ABOVE_BYTES
        return await asyncio.to_thread(work) if is_long else work()

    async def _grammar(self) -> Grammar | None:
        request = self.decoded.request
        if request is None or request.response_format.type == "text":
            return None
        return await asyncio.to_thread(grammar_of, request, self._parts.model)

    async def _refuse(self, generation: Generation, problem: RequestError, *, poison: bool) -> None:
        if poison:
            self._parts.metrics.dead_letters.inc()
            await self._parts.publisher.dead_letter(
                self.decoded.record, problem.code.value, str(problem), attempts=1
            )
        self._end(generation, Ending(error=problem))

    def _engine_request(
        self, generation: Generation, remaining_s: float | None, grammar: Grammar | None
    ) -> EngineRequest:
        request, start = self.decoded.request, generation.start
        assert request is not None and start is not None  # noqa: S101, PT018
        return EngineRequest(
            key=generation.key,
            prompt_ids=start.prompt_ids,
            generated_ids=list(generation.ids),
            sampling=sampling_of(request, start.seed),
            max_tokens=min(
                request.token_limit, self._parts.model.window_tokens - len(start.prompt_ids)
            ),
            priority=request.priority,
            deadline_s=None if remaining_s is None else time.monotonic() + remaining_s,
            tenant=self.decoded.tenant,
            grammar=grammar,
        )

    # 6. and 7. what engine, journal and broker report

    def on_output(self, output: EngineOutput) -> None:
        """step: the engine made tokens, or ended."""
        generation = self.generation
        if generation is None or generation.key != output.key or generation.ending is not None:
            return
        self._stopwatch.note(output)
        self._reuse.note(output, num_known=generation.num_tokens)
        self._parts.metrics.generation_tokens.inc(len(output.token_ids))
        generation.extend(output.token_ids, output.text)
        if output.is_last:
            generation.end(self._ending_of(output))
        self._parts.flusher.touch(generation)

    def _ending_of(self, output: EngineOutput) -> Ending:
        timings = self._stopwatch.timings()
        if output.error is not None:
            return Ending(error=problem_of(output.error), timings=timings)
        reason = output.finish_reason.value if output.finish_reason else None
        return Ending(reason, cached_tokens=output.cached_tokens, timings=timings)

    def cancel(self) -> None:
        """End it as soon as may be; one that has ended stays as it is."""
        self._cancel_wanted = True  # there may be no generation yet
        generation = self.generation
        if generation is None or generation.ending is not None:
            return
        if self._in_engine:
            self._parts.engine.cancel(generation.key)
            return
        if self._stream is not None:
            generation.extend([], self._stream.finish())
        self._end(generation, Ending(finish_reason="cancelled"))

    def _end(self, generation: Generation, ending: Ending) -> None:
        generation.end(ending)
        self._parts.flusher.touch(generation)

    @property
    def is_under_way(self) -> bool:
        """Whether a drain waits for it: the engine has it, or its answer is being published."""
        generation = self.generation
        return generation is not None and (self._in_engine or generation.ending is not None)

    @property
    def is_delivered(self) -> bool:
        return self.generation is not None and self.generation.is_delivered

    def on_acknowledged(self) -> None:
        """The broker has another event; the last one is what is waited for."""
        if self.is_delivered:
            self._changed.set()

    def on_fenced(self) -> None:
        """flush was refused: a larger token stands in the journal."""
        self._fenced = True
        self._changed.set()

    async def _published(self, generation: Generation) -> bool:
        """Wait until the broker has the last event; False: fenced."""
        while not self._fenced:
            if generation.is_delivered and generation.standing is not Standing.LOST:
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    # 9. finish

    async def _store_session(self, generation: Generation, session: SessionRecord) -> None:
        """The conversation with this turn; a failed turn leaves nothing."""
        ending = generation.ending
        if ending is None or ending.error is not None or self.decoded.request is None:
            return
        try:
            # cancelled before its turn: its question stays
            start = generation.start or await self._prepare(session)
            record = conversation_after(
                self.decoded, session, start, generation.ids, generation.text
            )
        except Exception as problem:
            # the answer is in the log; the session went on, was stored before, or cannot be encoded
            if not isinstance(problem, RequestError):
                log.exception("turn not stored", request_id=self.decoded.request_id)
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
        return generation.has_no_journal and self._parts.ownership.came_since(self.decoded.record)

    def _token(self, generation: Generation) -> int:
        """The newest token of this owner: a turn before this one may have been stored under it."""
        assignment = self._parts.ownership.get(self.decoded.record.partition)
        return max(generation.token, assignment.token if assignment else 0)

    async def _confirm(self, generation: Generation) -> Outcome | None:
        """confirm: is the journal still ours?

        None: it was lost, and a larger attempt is on its way.
        """
        while True:
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
            if generation.has_no_journal:
                self._parts.flusher.touch(generation)  # adopts it, now that Redis is back
                await asyncio.sleep(POLL_INTERVAL_S)
                if self._fenced:
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
        metrics.e2e_latency.observe(max(0.0, time.time() - self.decoded.record.timestamp_ms / 1000))
        return Outcome.DELIVERED
