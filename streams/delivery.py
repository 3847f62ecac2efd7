"""The life of one request in this worker (docs/architecture.md, steps 4 to 9), as one task.

    claim -> wait for its turn -> prepare -> engine ... flush, publish ... -> confirm -> commit

What a generation *is* stands in generation.py; this file only moves it along.
"""

import asyncio

import structlog

from headrace.models.engine import EngineStoppedError
from headrace.models.request import EngineOutput
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError, UndecodableError
from headrace.schemas.request import DecodedRequest
from headrace.streams.admission import Admission
from headrace.streams.claiming import Claimant, Outcome
from headrace.streams.failures import Failures
from headrace.streams.finishing import Finishing
from headrace.streams.generation import (
    Ending,
    Generation,
    JournalEntry,
    Standing,
    TextStream,
)
from headrace.streams.journal import Claim, ClaimKind
from headrace.streams.parts import Parts
from headrace.streams.prefix_reuse import PrefixReuse
from headrace.streams.preparation import expired, problem_of
from headrace.streams.session_store import SessionRecord
from headrace.streams.stopwatch import Stopwatch
from headrace.streams.story import Account

log = structlog.get_logger(__name__)


ANOTHER_LOOK_S = 0.3
"""For the conversation of a request whose claim Redis has not answered in 0.5 s: new requests start
within a second while it is away, and after a hiccup their history is there.
"""


class Delivery:
    """One record on its way to its last event."""

    def __init__(self, parts: Parts, decoded: DecodedRequest, place: asyncio.Event) -> None:
        self._parts, self.decoded, self._place = parts, decoded, place
        self.claimant = Claimant(
            decoded, parts.journal, parts.scripts, parts.ownership, parts.lease
        )
        self._failures = Failures(parts.journal, parts.scripts, parts.roster, parts.isolation)
        self._reuse = PrefixReuse(parts, decoded)
        self._admission = Admission(parts, decoded, self._reuse)
        self._finishing = Finishing(
            parts, decoded, self._admission, self._reuse, is_fenced=lambda: self._fenced
        )
        self._stopwatch = Stopwatch(decoded.record.timestamp_ms, parts.metrics)
        self._account = Account(parts.tracer, decoded, self._stopwatch)
        self.generation: Generation | None = None
        self._stream: TextStream | None = None
        self._is_expected = False
        self._in_engine = False
        self._fenced = False
        self._cancel_wanted = False
        self._failure: RequestError | None = None
        self._got_on = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> Outcome:
        """Deliver the answer; any outcome but NOT_OURS says that the record is finished.

        Cancel: the engine drops it; what is journaled is what the next owner goes on from.
        """
        outcome = Outcome.NOT_OURS  # also if it is cancelled
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
            self._account.tell(outcome.value, self.generation)
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
        entry = None
        if isinstance(found, Generation):
            generation = self._begin(found)
        else:
            claim, token = found
            entry = claim.entry or JournalEntry(attempt=token)
            if entry.done:
                return Outcome.DONE_BEFORE
            generation = self._resume(claim, entry, token)
        if self._cancel_wanted:
            self.cancel()
        self._parts.flusher.touch(generation)
        if entry is not None:
            await self._failures.judge(generation, entry)
        await self._wait_for_turn(generation)
        session = await self._load_session(generation)
        await self._generate(generation, session)
        self._expect(False)
        while await self._published(generation, session):
            await self._finishing.store_session(generation, session)
            outcome = await self._finishing.confirm(generation)
            if outcome is not None:
                return outcome
        return Outcome.FENCED

    # 4. claim

    def _begin(self, generation: Generation) -> Generation:
        self.generation, self._failure = generation, None
        self._fenced = self._in_engine = False
        self._stream = self._new_stream()
        return generation

    def _new_stream(self) -> TextStream:
        request = self.decoded.request
        return self._parts.engine.text_stream(tuple(request.stop) if request else ())

    def _resume(self, claim: Claim, entry: JournalEntry, token: int) -> Generation:
        """A generation that goes on from what the journal holds."""
        generation = self._begin(Generation(self.decoded, token=token, attempt=entry.attempt))
        if claim.kind is ClaimKind.UNREADABLE or self._is_of_another_model(entry):
            log.warning("journal is of no use: begins again", request_id=self.decoded.request_id)
            generation.standing, generation.attempt = Standing.LOST, token
        else:
            assert self._stream is not None  # noqa: S101
            generation.restore(entry, self._stream)
            if entry.start is not None:
                self._parts.metrics.resumed.inc()
                self._account.num_resumed = len(generation.ids)
                if entry.ending is None and entry.ids:
                    self._parts.resuming.begin(self)
        if entry.cancelled:
            self.cancel()
        return generation

    def _is_of_another_model(self, entry: JournalEntry) -> bool:
        """Whether what is missing of the text would be another one's: half a sentence of each."""
        if entry.start is None or entry.ending is not None:
            return False
        return entry.start.fingerprint != self._parts.model.fingerprint

    def _drop(self) -> None:
        """This worker does not go on with it."""
        if self.generation is not None:
            self._parts.engine.abort(self.generation.key)
            self._parts.flusher.forget(self.generation)
            self.generation = None
        self._reuse.release()
        self._parts.resuming.end(self)

    # 5. prepare

    async def _wait_for_turn(self, generation: Generation) -> None:
        """Session order. A request that expires meanwhile is answered at once."""
        self._expect(self._place.is_set())
        try:
            async with asyncio.timeout(self._admission.remaining_s(generation)):
                await self._place.wait()
        except TimeoutError:
            self._end(generation, Ending(error=expired()))
            await self._place.wait()
        self._expect(True)

    async def _load_session(self, generation: Generation) -> SessionRecord:
        """The conversation; while Redis is away, a generation without a journal goes on from what
        this owner remembers of it.
        """
        sessions, whose = self._parts.sessions, (self.decoded.tenant, self.decoded.session_id)
        while True:
            is_alone = generation.standing is Standing.UNJOURNALED
            try:
                async with asyncio.timeout(ANOTHER_LOOK_S if is_alone else None):
                    return await sessions.load(*whose)
            except (UnavailableError, TimeoutError):
                if is_alone:
                    return sessions.remembered(*whose)
                await self._parts.scripts.back()

    async def _generate(self, generation: Generation, session: SessionRecord) -> None:
        """Until the engine has it, and a suspect until it got on; or until it has ended."""
        if self._failures.is_hopeless and generation.ending is None:
            await self._give_up(generation, self._failures.given_up())
        while generation.ending is None and not self._fenced:
            try:
                alone = self._failures.is_suspect
                async with self._failures.alone_if_suspect(generation):
                    await self._admit(generation, session, alone=alone)
                if alone:
                    self._parts.engine.share(generation.key)
                return
            except EngineStoppedError:
                raise  # not this request's fault
            except UndecodableError as problem:
                await self._give_up(generation, problem)
            except RequestError as problem:
                self._end(generation, Ending(error=problem))
            except Exception as problem:
                # the boundary of contract §5: what breaks on one request fails that request alone
                log.exception("request could not be prepared", request_id=self.decoded.request_id)
                text = f"the request could not be prepared: {type(problem).__name__}"
                failure = RequestError(ErrorCode.INTERNAL_ERROR, text)
                await self._after_failure(generation, failure)

    async def _admit(self, generation: Generation, session: SessionRecord, *, alone: bool) -> None:
        self._got_on.clear()
        if not generation.ids:
            await self._parts.resuming.give_way()
        self._in_engine = await self._admission.admit(generation, session, alone=alone)
        self._parts.resuming.end(self)
        self._account.added()
        if alone and self._in_engine:
            await self._got_on.wait()

    async def _after_failure(self, generation: Generation, failure: RequestError) -> None:
        """It is tried again after a pause, or given up."""
        await self._failures.failed(generation)
        if self._failures.is_hopeless and generation.ending is None:
            await self._give_up(generation, failure)

    async def _give_up(self, generation: Generation, problem: RequestError) -> None:
        """A dead letter, and then the last event: after a crash in between, both once more."""
        self._parts.metrics.dead_letters.inc()
        attempts = max(1, self._failures.count)
        await self._parts.publisher.dead_letter(
            self.decoded.record, problem.code.value, str(problem), attempts=attempts
        )
        self._end(generation, Ending(error=problem))

    # 6. and 7. what engine, journal and broker report

    def on_output(self, output: EngineOutput) -> None:
        """step: the engine made tokens, or ended."""
        generation = self.generation
        if generation is None or generation.key != output.key or generation.ending is not None:
            return
        self._got_on.set()
        if output.error is not None and not output.error.is_refusal:
            self._on_failure(generation, problem_of(output.error))
            return
        self._stopwatch.note(output)
        self._reuse.note(output, generation)
        self._parts.metrics.generation_tokens.inc(len(output.token_ids))
        generation.extend(output.token_ids, output.text)
        if output.is_last:
            generation.end(self._ending_of(output))
        self._parts.flusher.touch(generation)

    def _on_failure(self, generation: Generation, failure: RequestError) -> None:
        """The engine has it no more; `_published` sees to what follows."""
        self._in_engine = False
        self._reuse.release()
        self._stream = self._new_stream()
        for token_id in generation.ids:
            self._stream.push(token_id)  # a cancel shows what the engine held back
        self._failure = failure
        self._changed.set()

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
            self._account.delivered()
            self._changed.set()

    def on_fenced(self) -> None:
        """flush was refused: a larger token stands in the journal."""
        self._fenced = True
        self._changed.set()
        self._got_on.set()

    async def _published(self, generation: Generation, session: SessionRecord) -> bool:
        """Wait until the broker has the last event, with another try where one failed.

        False: fenced.
        """
        while not self._fenced:
            if generation.is_delivered and generation.standing is not Standing.LOST:
                return True
            if self._failure is not None:
                failure, self._failure = self._failure, None
                await self._after_failure(generation, failure)
                await self._generate(generation, session)
                continue
            self._changed.clear()
            await self._changed.wait()
        return False
