"""One generation while it runs: its tokens, its text, and the rules that end it. No tensors, no
threads, no clock.
"""

from headrace.models.request import EngineError, EngineOutput, EngineRequest, FinishReason
from headrace.models.text import TextStream


class Generation:
    """The state of one request in the engine.

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
    ) -> None:
        self.request = request
        self.generated_ids: list[int] = []
        self.num_computed = 0
        self.scheduled_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self.max_total_tokens = min(len(request.prompt_ids) + request.max_tokens, max_model_len)
        self._text_stream = text_stream
        params = request.sampling
        self._end_ids = params.stop_token_ids | (frozenset() if params.ignore_eos else eos_ids)
        for token_id in request.generated_ids:
            self._append(token_id)

    @property
    def key(self) -> str:
        """The request's key."""
        return self.request.key

    @property
    def priority(self) -> int:
        """The request's priority, higher first."""
        return self.request.priority

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and generated."""
        return len(self.request.prompt_ids) + len(self.generated_ids)

    def is_overdue(self, now_s: float) -> bool:
        """Whether its prefill should have begun by now, and has not."""
        deadline_s = self.request.deadline_s
        return deadline_s is not None and self.scheduled_s is None and now_s >= deadline_s

    def schedule(self, now_s: float) -> None:
        """Note when its prefill began; later calls change nothing."""
        if self.scheduled_s is None:
            self.scheduled_s = now_s

    def next_ids(self, num_tokens: int) -> list[int]:
        """The first `num_tokens` known tokens that are not computed yet."""
        start, end = self.num_computed, self.num_computed + num_tokens
        num_prompt = len(self.request.prompt_ids)
        if start >= num_prompt:
            return self.generated_ids[start - num_prompt : end - num_prompt]
        return [
            *self.request.prompt_ids[start:end],
            *self.generated_ids[: max(end - num_prompt, 0)],
        ]

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
        return EngineOutput(self.key, [], "", None, error, self._scheduled_or(now_s), now_s)

    def _append(self, token_id: int) -> str:
        if self.finish_reason is not None:
            return ""  # an earlier run does not go on after the end; what follows does not count
        self.generated_ids.append(token_id)
        text = self._text_stream.push(token_id)
        if token_id in self._end_ids or self._text_stream.stopped:
            self.finish_reason = FinishReason.STOP
        elif self.num_tokens >= self.max_total_tokens:
            self.finish_reason = FinishReason.LENGTH
        return text

    def _output(self, token_ids: list[int], text: str, now_s: float) -> EngineOutput:
        if self.finish_reason is not None:
            text += self._text_stream.finish()
        return EngineOutput(
            self.key, token_ids, text, self.finish_reason, None, self._scheduled_or(now_s), now_s
        )

    def _scheduled_or(self, now_s: float) -> float:
        return now_s if self.scheduled_s is None else self.scheduled_s
