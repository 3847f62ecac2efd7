"""One delivery's use of KV state that was computed before: fetched, counted, kept for later."""

from headrace.models.kv.write_behind import Turn
from headrace.models.request import EngineOutput, EngineRequest
from headrace.schemas.request import DecodedRequest
from headrace.streams.generation import Generation
from headrace.streams.parts import Parts

KEEP_TOKENS = 64
"""How often a growing answer is written behind: what another worker has to compute again when the
answer moves there. All of it would be written at its end anyway.
"""


class PrefixReuse:
    """Between a delivery and the tiers of the prefix cache."""

    def __init__(self, parts: Parts, decoded: DecodedRequest) -> None:
        self._parts, self._decoded = parts, decoded
        self._num_held = 0
        self._counted = False
        self._keep_at = 0

    async def fetch(self, request: EngineRequest) -> None:
        """Give the request the leading blocks that Redis has and this worker has not.

        Bounded by `kv.prefetch.FETCH_TIMEOUT_S`. Cancel: safe.
        """
        kv = self._parts.kv
        if kv is None or not self._parts.scripts.available.is_set():
            return
        token_ids = [*request.prompt_ids, *request.generated_ids]
        self.release()
        request.kv_blocks = await kv.fetch(token_ids, request.tenant)
        self._num_held = len(request.kv_blocks)

    def note(self, output: EngineOutput, generation: Generation) -> None:
        """The engine made tokens, which are not in the generation yet."""
        if not output.token_ids:
            return
        if not self._counted:
            self._counted = True
            self._count(output, num_known=generation.num_tokens)
        if len(generation.ids) >= self._keep_at and not output.is_last:
            self._keep_at = len(generation.ids) + KEEP_TOKENS
            self.keep(generation)

    def _count(self, output: EngineOutput, *, num_known: int) -> None:
        """The prompt, with the tokens of an earlier run, is in the cache now."""
        self.release()
        num_local = output.cached_tokens - output.fetched_tokens
        metrics, kv = self._parts.metrics, self._parts.kv
        metrics.cache_queries.labels("local").inc(num_known)
        metrics.cache_hits.labels("local").inc(num_local)
        if kv is not None:
            metrics.cache_queries.labels("redis").inc(num_known - num_local)
            metrics.cache_hits.labels("redis").inc(output.fetched_tokens)
            kv.prefilled(num_known - output.cached_tokens, output.emitted_s - output.scheduled_s)

    def keep(self, generation: Generation) -> None:
        """Its KV state up to now is written behind: for the next turn, or the next owner."""
        if self._parts.kv is not None and self._decoded.named_session:
            self._parts.kv.keep(turn_of(generation))

    def release(self) -> None:
        """The engine has the blocks, or does not need them."""
        if self._parts.kv is not None and self._num_held:
            self._parts.kv.release(self._num_held)
        self._num_held = 0


def turn_of(generation: Generation) -> Turn:
    """All tokens of a generation up to now; none before it was prepared."""
    decoded, start = generation.decoded, generation.start
    token_ids = (*start.prompt_ids, *generation.ids) if start is not None else ()
    return Turn(decoded.tenant, decoded.session_id, token_ids)
