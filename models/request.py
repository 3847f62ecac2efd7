"""What goes into the engine and what comes out: requests, sampling parameters, outputs, errors.

Plain data. It knows nothing of tensors, tokenizers, Kafka or the wire format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.models.constraints import Grammar


class FinishReason(StrEnum):
    """Why a generation ended without an error."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class EngineErrorCode(StrEnum):
    """What went wrong with one generation; the same names as on the wire."""

    NUMERICAL_ERROR = "numerical_error"
    OUT_OF_MEMORY = "out_of_memory"
    INTERNAL_ERROR = "internal_error"
    EXPIRED = "expired"


class EngineError(Exception):
    """One generation failed; the others go on.

    `is_refusal`: it was not run, and would be refused again.
    """

    def __init__(self, code: EngineErrorCode, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(code, message)
        self.code, self.message, self.is_refusal = code, message, is_refusal

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and which tokens or texts end the generation.

    The defaults sample from the model's own distribution. `temperature` 0 is greedy, `top_k` 0 is
    off. The ranges are those of the request schema, which checks them.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class KVBlock:
    """A copy of one full KV block: its name (see `prefix`), its own tokens, and its bytes."""

    hash: bytes
    token_ids: tuple[int, ...]
    data: bytes | memoryview


@dataclass(slots=True)
class EngineRequest:
    """One generation to run, or to go on with.

    `generated_ids` are the tokens that an earlier run of this generation gave, `max_tokens` counts
    them too. One whose prefill has not begun by `deadline_s` fails with `expired`. `kv_blocks` are
    leading blocks of its tokens that were fetched from elsewhere; those that are not what their
    name says are not used. The answer follows `grammar`, if there is one; it then ends at an
    end-of-turn token also where `ignore_eos` is asked for. While one that
    `begins_alone` is not shared (`Engine.share`), no other is computed: if something happens then,
    it was this one.

    Units: `deadline_s` is `time.monotonic()`.

    Raises: ValueError if there is no prompt or no token to generate.
    """

    key: str
    prompt_ids: list[int]
    max_tokens: int
    generated_ids: list[int] = field(default_factory=list)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    deadline_s: float | None = None
    tenant: str = "default"
    kv_blocks: Sequence[KVBlock] = ()
    grammar: Grammar | None = None
    begins_alone: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(f"request {self.key}: the prompt has no tokens")
        if self.max_tokens < 1:
            raise ValueError(
                f"request {self.key}: max_tokens is {self.max_tokens}, must be 1 or more"
            )


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one step gave one generation; the one with a `finish_reason` or an `error` is its last.

    `text` is safe to show: whole characters, and nothing that may still turn out to be a stop
    string. `cached_tokens` of the prompt were not computed, as their KV state was there when it was
    first admitted; `fetched_tokens` of these came with the request's `kv_blocks`.

    Units: `scheduled_s` and `emitted_s` are `time.monotonic()`. The prefill began at `scheduled_s`;
        for a generation that ended before its prefill it is the time of that end.
    """

    key: str
    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None
    error: EngineError | None
    scheduled_s: float
    emitted_s: float
    cached_tokens: int = 0
    fetched_tokens: int = 0

    @property
    def is_last(self) -> bool:
        """Whether nothing follows for this key."""
        return self.finish_reason is not None or self.error is not None
