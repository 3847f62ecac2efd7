"""One generation while it runs: its tokens, its text, and the rules that end it. No tensors, no
threads, no clock.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.models.batch import Wanted
from headrace.models.request import (
    EngineError,
    EngineOutput,
    EngineRequest,
    FinishReason,
    KVBlock,
)
from headrace.models.sampler import is_plainly_greedy
from headrace.models.sequence import TokenSequence
from headrace.models.text import TextStream


class Generation(TokenSequence):
    """The state of one request in the engine. `kv_blocks` are those of the request that can be
    used.

    A request that brings `generated_ids` takes up where these ended: they are part of the sequence
    to prefill, and their text does not come again. If they already end the generation,
    `finish_reason` is set from the start.
    """

    def __init__(
        self,
        request: EngineRequest,
        text_stream: TextStream,
        *,
        eos_ids: frozenset[int],
        max_model_len: int,
        root_hash: bytes | None = None,
        kv_blocks: Sequence[KVBlock] = (),
    ) -> None:
        super().__init__(
            request.key,
            request.prompt_ids,
            max_total_tokens=min(len(request.prompt_ids) + request.max_tokens, max_model_len),
            priority=request.priority,
            root_hash=root_hash,
            kv_blocks=kv_blocks,
            runs_alone=request.begins_alone,
        )
        self.request = replace(request, kv_blocks=())  # their memory goes with the import
        self.generated_ids: list[int] = []
        self.scheduled_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self._text_stream = text_stream
        params = request.sampling
        self.constraint = request.grammar.start() if request.grammar is not None else None
        is_free = self.constraint is None
        self.wanted = Wanted.GREEDY if is_free and is_plainly_greedy(params) else Wanted.LOGITS
        ignores_eos = params.ignore_eos and is_free  # nothing else may follow a complete answer
        self._end_ids = params.stop_token_ids | (frozenset() if ignores_eos else eos_ids)
        for token_id in request.generated_ids:
            self._append(token_id)

    def is_overdue(self, now_s: float) -> bool:
        """Whether its prefill should have begun by now, and has not."""
        deadline_s = self.request.deadline_s
        return deadline_s is not None and self.scheduled_s is None and now_s >= deadline_s

    def schedule(self, now_s: float) -> None:
        """Note when its prefill began; later calls change nothing."""
        if self.scheduled_s is None:
            self.scheduled_s = now_s

    def accept(self, token_id: int, now_s: float) -> EngineOutput:
        """Take the sampled token; the output is the last one if the token ends the generation."""
        text = self._append(token_id)
        return self._output([token_id], text, now_s)

    def end(self, now_s: float, reason: FinishReason | None = None) -> EngineOutput:
        """The last output of a generation that ends without a new token: cancelled, or ended by an
        earlier run.
        """
        self.finish_reason = self.finish_reason or reason
        return self._output([], "", now_s)

    def fail(self, error: EngineError, now_s: float) -> EngineOutput:
        """The last output of a generation that failed."""
        return self._output([], "", now_s, error)

    def _append(self, token_id: int) -> str:
        if self.finish_reason is not None:
            return ""  # an earlier run does not go on after the end; what follows does not count
        self.generated_ids.append(token_id)
        self.token_ids.append(token_id)
        if self.constraint is not None:
            self.constraint.accept(token_id)
        text = self._text_stream.push(token_id)
        if token_id in self._end_ids or self._text_stream.stopped:
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) >= self.max_total_tokens:
            self.finish_reason = FinishReason.LENGTH
        return text

    def _output(
        self, token_ids: list[int], text: str, now_s: float, error: EngineError | None = None
    ) -> EngineOutput:
        if self.finish_reason is not None:
            text += self._text_stream.finish()
        return EngineOutput(
            self.key,
            token_ids,
            text,
            self.finish_reason,
            error,
            now_s if self.scheduled_s is None else self.scheduled_s,
            now_s,
            self.cached_tokens,
            self.fetched_tokens,
        )
