"""An engine and a model without arithmetic: the next token is a function of prompt, seed and place.

Answers are a few characters of one to four bytes, a token each byte, so that chunks have places
where they must not be cut.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from headrace.models.engine import EngineStoppedError
from headrace.models.request import (
    EngineError,
    EngineErrorCode,
    EngineOutput,
    EngineRequest,
    FinishReason,
)
from headrace.streams.preparation import ServedModel
from tests.fakes import ByteEncoder, ByteStream

EOS = 256
CHARACTERS = ("a", "b", "é", "€", "😀")
MAX_CHARACTERS = 9
FAILS_AT = b"BOOM"
"""A prompt that ends so fails at its third token."""


@lru_cache(maxsize=10_000)
def answer_ids(prompt: bytes, seed: int) -> tuple[int, ...]:
    """All tokens of the undisturbed answer; the last one ends it."""
    digest = blake2b(prompt, digest_size=16, salt=seed.to_bytes(8, signed=True)).digest()
    text = "".join(CHARACTERS[one % 5] for one in digest[: 1 + digest[15] % MAX_CHARACTERS])
    return (*text.encode(), EOS)


def prompt_bytes(prompt_ids: Sequence[int]) -> bytes:
    """A prompt as what an answer depends on."""
    return b"".join(b"%d " % one for one in prompt_ids)


class NoGrammars:
    """No request here asks for one."""

    def compile(self, schema: str) -> Any:
        raise AssertionError("no request asks for a grammar")


MODEL = ServedModel(
    "tiny", frozenset({"tiny"}), "fp-1", 10_000, 300, 1_000, ByteEncoder(), NoGrammars()
)


class _Row:
    """One generation that runs."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.stream = ByteStream(request.sampling.stop)
        for token_id in request.generated_ids:
            self.stream.push(token_id)
        self.script = answer_ids(prompt_bytes(request.prompt_ids), request.sampling.seed)
        self.position = len(request.generated_ids)
        self.cancelled = False

    def step(self, worker: int, now_s: float) -> EngineOutput:
        """The next token, or the end."""
        key = self.request.key
        if self.cancelled:
            text = self.stream.finish()
            return EngineOutput(key, [], text, FinishReason.CANCELLED, None, now_s, now_s)
        fails = bytes(one for one in self.request.prompt_ids if one < 256).endswith(FAILS_AT)
        if fails and self.position >= 2:
            problem = EngineError(EngineErrorCode.OUT_OF_MEMORY, f"no room in worker {worker}")
            return EngineOutput(key, [], "", None, problem, now_s, now_s)
        token_id = self.script[self.position]
        self.position += 1
        text, finish = self.stream.push(token_id), self._finish()
        if finish is not None:
            text += self.stream.finish()
        return EngineOutput(key, [token_id], text, finish, None, now_s, now_s)

    def _finish(self) -> FinishReason | None:
        if self.position == len(self.script) or self.stream.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.position == self.request.max_tokens else None


class StepwiseEngine:
    """Makes a token for each generation when it is told to step."""

    alive = True
    kv_usage = 0.0

    def __init__(
        self,
        worker: int,
        now_s: Callable[[], float],
        on_outputs: Callable[[list[EngineOutput]], None],
    ) -> None:
        self._worker, self._now_s, self._on_outputs = worker, now_s, on_outputs
        self._rows: dict[str, _Row] = {}
        self._stopped = False
        self.last_step_s: float | None = None

    @property
    def num_running(self) -> int:
        return len(self._rows)

    def start(self) -> None:
        """There is no thread."""

    def stop(self) -> None:
        self._stopped = True

    def add(self, request: EngineRequest) -> None:
        if self._stopped:
            raise EngineStoppedError
        if request.key in self._rows:
            raise ValueError(f"{request.key} is running")
        self._rows[request.key] = _Row(request)

    def expect(self, change: int) -> None:
        """It waits for nobody."""

    def cancel(self, key: str) -> None:
        if key in self._rows:
            self._rows[key].cancelled = True

    def abort(self, key: str) -> None:
        self._rows.pop(key, None)

    def text_stream(self, stop: Sequence[str]) -> ByteStream:
        return ByteStream(stop)

    def step(self) -> bool:
        """One token for all; False: nothing runs."""
        if self._stopped or not self._rows:
            return False
        outputs = [row.step(self._worker, self._now_s()) for row in self._rows.values()]
        for output in outputs:
            if output.is_last:
                del self._rows[output.key]
        self._on_outputs(outputs)
        return True
