"""What the HTTP API answers, as models for its document (`openapi.py`).

The answers themselves are made of response events (`openai_form.py`), and tests hold them against
these. Every object may have more fields later on: readers ignore what they do not know.
"""

from typing import Literal

from pydantic import BaseModel, Field

from headrace.schemas.errors import ErrorCode

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
"""`cancelled` is ours: somebody cancelled the request by its id."""


class CachedTokens(BaseModel):
    cached_tokens: int = Field(ge=0, description="of the prompt, taken from the KV cache")


class TokenUsage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: CachedTokens


class AnswerTimings(BaseModel):
    """Milliseconds; `queue_ms` counts from the record's timestamp."""

    queue_ms: float = Field(ge=0)
    prefill_ms: float = Field(ge=0)
    ttft_ms: float = Field(ge=0)
    decode_ms: float = Field(ge=0)


class _Named(BaseModel):
    """What every answer says about where it is from; the last four are ours."""

    id: str = Field(description="the request id; also in `x-request-id`")
    created: int = Field(ge=0, description="seconds since the epoch")
    model: str
    system_fingerprint: str
    session_id: str
    attempt: int = Field(ge=0)
    sequence_number: int = Field(ge=0)
    prompt_token_ids: list[int] = Field([], description="only with `return_token_ids`")


class _Whole(_Named):
    usage: TokenUsage
    timings: AnswerTimings
    seed: int = Field(description="the one that was used")
    metadata: dict[str, str] = Field(description="the request's own")


class _Choice(BaseModel):
    index: Literal[0]
    logprobs: None
    token_ids: list[int] = Field([], description="only with `return_token_ids`")


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class AnswerDelta(BaseModel):
    content: str
    role: Literal["assistant"] = Field("assistant", description="only in the first chunk")


class ChatChoice(_Choice):
    message: AnswerMessage
    finish_reason: FinishReason


class ChatChunkChoice(_Choice):
    delta: AnswerDelta
    finish_reason: FinishReason | None


class TextChoice(_Choice):
    text: str
    finish_reason: FinishReason | None


class ChatCompletion(_Whole):
    """The whole answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice] = Field(min_length=1, max_length=1)


class TextCompletion(_Whole):
    """The whole answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[TextChoice] = Field(min_length=1, max_length=1)


class _Chunk(_Named):
    """The last chunk also has `timings`, `seed` and `metadata`."""

    usage: TokenUsage | None = Field(None, description="only with `stream_options.include_usage`")


class ChatCompletionChunk(_Chunk):
    """One `data:` of a streamed chat answer; the usage chunk has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice] = Field(max_length=1)


class TextCompletionChunk(_Chunk):
    """One `data:` of a streamed text completion; the usage chunk has no choices."""

    object: Literal["text_completion"]
    choices: list[TextChoice] = Field(max_length=1)


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["headrace"]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class ErrorBody(BaseModel):
    type: Literal["invalid_request_error", "server_error"]
    code: ErrorCode
    message: str
    param: str | None = Field(description="the path of the field that is wrong")
    retry_after_s: float | None = Field(
        None, description="only with `rate_limited`: seconds after which the same call fits"
    )


class ErrorAnswer(BaseModel):
    """Every refusal, in OpenAI's form."""

    error: ErrorBody


class CancelAccepted(BaseModel):
    request_id: str
    session_id: str


class SessionDeleted(BaseModel):
    session_id: str


class Health(BaseModel):
    status: str
