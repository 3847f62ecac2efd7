"""Step 5 of one delivery: from the conversation to the engine."""

import asyncio
import time
from functools import partial

from headrace.models.constraints import Grammar
from headrace.models.request import EngineRequest
from headrace.schemas.request import DecodedRequest
from headrace.streams.generation import Generation, Start
from headrace.streams.parts import Parts
from headrace.streams.prefix_reuse import PrefixReuse
from headrace.streams.preparation import expired, grammar_of, prepare, sampling_of
from headrace.streams.session_store import SessionRecord

THREAD_ABOVE_BYTES = 32_768
"""Tokenising 0.98 MB took 1.7 to 3.1 s on a loaded machine: this much, some 0.1 s."""


class Admission:
    """Prepares a request and gives it to the engine."""

    def __init__(self, parts: Parts, decoded: DecodedRequest, reuse: PrefixReuse) -> None:
        self._parts, self._decoded, self._reuse = parts, decoded, reuse

    def remaining_s(self, generation: Generation) -> float | None:
        """How long it may still wait; None: for ever, or it has begun."""
        request = self._decoded.request
        if request is None or request.ttl_ms is None or generation.start is not None:
            return None
        end_s = (self._decoded.record.timestamp_ms + request.ttl_ms) / 1000
        return max(0.0, end_s - time.time())

    async def admit(self, generation: Generation, session: SessionRecord, *, alone: bool) -> bool:
        """Give it to the engine; False: it was cancelled meanwhile. `alone`: see EngineRequest.

        Raises: RequestError for what is refused, EngineStoppedError, and what breaks on the way.
        """
        if self._decoded.error is not None:
            raise self._decoded.error
        remaining_s = self.remaining_s(generation)
        if remaining_s == 0.0:
            raise expired()
        grammar = await self._grammar()
        if generation.start is None:
            generation.begin(await self.prepare(session))
        if generation.ending is not None:
            return False
        request = self._engine_request(generation, remaining_s, grammar, alone=alone)
        await self._reuse.fetch(request)
        if generation.ending is not None:
            return False
        self._parts.engine.add(request)
        return True

    async def prepare(self, session: SessionRecord) -> Start:
        """Settle prompt and seed. Raises: RequestError.

        Long prompts in a thread: tokenising one must not hold up the streams of the others.
        """
        work = partial(prepare, self._decoded, session, self._parts.model, now_s=time.time())
        is_long = len(self._decoded.record.value or b"") >= THREAD_ABOVE_BYTES
        return await asyncio.to_thread(work) if is_long else work()

    async def _grammar(self) -> Grammar | None:
        request = self._decoded.request
        if request is None or request.response_format.type == "text":
            return None
        return await asyncio.to_thread(grammar_of, request, self._parts.model)

    def _engine_request(
        self,
        generation: Generation,
        remaining_s: float | None,
        grammar: Grammar | None,
        *,
        alone: bool,
    ) -> EngineRequest:
        request, start = self._decoded.request, generation.start
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
            tenant=self._decoded.tenant,
            grammar=grammar,
            begins_alone=alone,
        )
