"""From a request and its conversation to what the engine runs (step 5).

Pure. Owns the checks that need the model (alias, window, vocabulary, chat template), and how
refusals are worded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from headrace.models.constraints import Grammar, GrammarError
from headrace.models.conversation import ChatTemplateError, ContextLengthError
from headrace.models.request import EngineError, EngineErrorCode, SamplingParams
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.request import DecodedRequest, GenerationRequest
from headrace.streams.generation import Start
from headrace.streams.session_store import ChatMessage, SessionRecord


class Encoder(Protocol):
    """Conversations to token ids (headrace.models.conversation.ConversationEncoder)."""

    def encode_messages(self, messages: Sequence[ChatMessage]) -> list[int]: ...

    def encode_prompt(self, text: str) -> list[int]: ...

    def extend(
        self,
        history_messages: Sequence[ChatMessage],
        history_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
    ) -> list[int]: ...

    def extend_prompt(self, history_ids: Sequence[int], text: str) -> list[int]: ...

    def fit(
        self, messages: Sequence[ChatMessage], limit_tokens: int
    ) -> tuple[list[ChatMessage], list[int]]: ...


class Compiler(Protocol):
    """Schemas to grammars (headrace.models.constraints.GrammarCompiler)."""

    def compile(self, schema: str) -> Grammar: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a worker's model is called and can take."""

    name: str
    aliases: frozenset[str]
    fingerprint: str
    window_tokens: int
    vocab_size: int
    longest_token_chars: int
    encoder: Encoder
    grammars: Compiler


def prepare(
    decoded: DecodedRequest, session: SessionRecord, model: ServedModel, *, now_s: float
) -> Start:
    """Settle prompt, seed and context.

    Raises: RequestError for what the model cannot take or the session does not hold.
    """
    request = decoded.request
    assert request is not None, "refused requests are not prepared"  # noqa: S101
    _check_model(request, model, any_name=decoded.for_comparison)
    history = _history(decoded, request, session)
    messages = _messages(request, history)
    _check_size(request, messages, model)
    ids = _encode(request, history, model)
    dropped = 0
    if len(ids) >= model.window_tokens and request.truncation == "auto":
        kept, ids = _truncate(messages, request, model)
        dropped = len(messages) - len(kept)
    if len(ids) >= model.window_tokens:
        raise context_too_long(len(ids), model.window_tokens)
    if not ids:
        raise RequestError(ErrorCode.INVALID_VALUE, "the prompt has no tokens", "prompt")
    return Start(
        prompt_ids=ids,
        seed=_seed(decoded) if request.seed is None else request.seed,
        session_version=session.version,
        dropped_messages=dropped,
        created_s=int(now_s),
        model=model.name,
        fingerprint=model.fingerprint,
    )


def _seed(decoded: DecodedRequest) -> int:
    """Where a request names none: 63 bits that no other record has, the same at every reading.

    So an owner that must begin again, because nothing of a journal is left, gets the same text; so
    does a replay, whose records keep the place of their originals.
    """
    return int.from_bytes(blake2b(decoded.origin.source.encode(), digest_size=8).digest()) >> 1


def grammar_of(request: GenerationRequest, model: ServedModel) -> Grammar | None:
    """What the answer's form is held to, None for free text.

    A schema that is new to the worker may take a second: not for the event loop.

    Raises: RequestError for a schema that cannot be followed.
    """
    schema = request.response_format.schema_text
    if schema is None:
        return None
    try:
        return model.grammars.compile(schema)
    except GrammarError as problem:
        param = "response_format.json_schema.schema"
        raise RequestError(ErrorCode.INVALID_VALUE, str(problem), param) from problem


def conversation_after(
    decoded: DecodedRequest,
    session: SessionRecord,
    start: Start,
    answer_ids: list[int],
    answer: str,
) -> SessionRecord:
    """What the session holds when this turn is finished."""
    request = decoded.request
    assert request is not None, "refused requests leave nothing"  # noqa: S101
    messages = _messages(request, _history(decoded, request, session))
    kept = _without_dropped(messages, start.dropped_messages)
    turn = [*kept, {"role": "assistant", "content": answer}]
    return SessionRecord(
        version=session.version,
        turns=sum(message["role"] == "assistant" for message in turn),
        messages=turn,
        ids=start.prompt_ids + answer_ids,
    )


def sampling_of(request: GenerationRequest, seed: int) -> SamplingParams:
    """The engine's form of a request's sampling fields."""
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        min_p=request.min_p,
        top_k=max(0, request.top_k),
        seed=seed,
        stop=tuple(request.stop),
        stop_token_ids=frozenset(request.stop_token_ids),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias={int(token): bias for token, bias in request.logit_bias.items()},
        ignore_eos=request.ignore_eos,
    )


def context_too_long(prompt_tokens: int, window_tokens: int, *, more: bool = False) -> RequestError:
    least = "at least " if more else ""
    text = f"the prompt has {least}{prompt_tokens} tokens, the model's window is {window_tokens}"
    return RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, text, "messages")


def _check_model(request: GenerationRequest, model: ServedModel, *, any_name: bool) -> None:
    is_other = request.model is not None and request.model not in model.aliases
    if is_other and not any_name:
        text = f"this worker serves {model.name}, not {request.model}"
        raise RequestError(ErrorCode.MODEL_NOT_FOUND, text, "model")
    for position, token in enumerate(request.stop_token_ids):
        _check_token(token, model.vocab_size, f"stop_token_ids.{position}")
    for token_text in request.logit_bias:
        _check_token(int(token_text), model.vocab_size, f"logit_bias.{token_text}")


def _check_size(
    request: GenerationRequest, messages: list[ChatMessage], model: ServedModel
) -> None:
    """Refuse what cannot fit whatever its tokens are, without the time to tokenise it."""
    num_chars = sum(len(message["content"]) for message in messages)
    least_tokens = num_chars // model.longest_token_chars
    if least_tokens >= model.window_tokens and request.truncation == "disabled":
        raise context_too_long(least_tokens, model.window_tokens, more=True)


def _check_token(token: int, vocab_size: int, param: str) -> None:
    if token >= vocab_size:
        text = f"the vocabulary has ids up to {vocab_size - 1}"
        raise RequestError(ErrorCode.INVALID_VALUE, text, param)


def _history(
    decoded: DecodedRequest, request: GenerationRequest, session: SessionRecord
) -> SessionRecord:
    """The conversation that this turn is put behind; empty for `replace`."""
    named = decoded.named_session or session.exists
    context = request.context or ("append" if named else "replace")
    if context == "replace":
        return SessionRecord(version=session.version)
    if request.turn is not None and request.turn != session.turns:
        text = (
            f"the stored conversation has {session.turns} assistant messages, not {request.turn}: "
            "send the whole conversation with context replace"
        )
        raise RequestError(ErrorCode.SESSION_OUT_OF_SYNC, text, "turn")
    return session


def _messages(request: GenerationRequest, history: SessionRecord) -> list[ChatMessage]:
    if request.messages is None:
        return [*history.messages, {"role": "user", "content": request.prompt or ""}]
    new = [{"role": message.role, "content": message.text} for message in request.messages]
    return [*history.messages, *new]


def _encode(request: GenerationRequest, history: SessionRecord, model: ServedModel) -> list[int]:
    encoder = model.encoder
    if request.prompt is not None:
        if history.exists:
            return encoder.extend_prompt(history.ids, request.prompt)
        return encoder.encode_prompt(request.prompt)
    new = _messages(request, SessionRecord())
    try:
        if history.exists:
            return encoder.extend(history.messages, history.ids, new)
        return encoder.encode_messages(new)
    except ChatTemplateError as problem:
        raise RequestError(ErrorCode.INVALID_VALUE, str(problem), "messages") from problem


def _truncate(
    messages: list[ChatMessage], request: GenerationRequest, model: ServedModel
) -> tuple[list[ChatMessage], list[int]]:
    """Drop the oldest turns; half of the window at the most is kept free for the answer."""
    room = min(request.token_limit, model.window_tokens // 2)
    try:
        return model.encoder.fit(messages, model.window_tokens - room)
    except ContextLengthError as problem:
        raise context_too_long(problem.prompt_tokens, model.window_tokens) from problem
    except ChatTemplateError as problem:
        raise RequestError(ErrorCode.INVALID_VALUE, str(problem), "messages") from problem


def _without_dropped(messages: list[ChatMessage], dropped: int) -> list[ChatMessage]:
    """The messages that truncation kept: it leaves a leading system message where it is."""
    if not dropped:
        return messages
    leading = 1 if messages[0]["role"] in ("system", "developer") else 0
    return messages[:leading] + messages[leading + dropped :]


def problem_of(error: EngineError) -> RequestError:
    """What a reader is told of a generation that the engine gave up."""
    if error.code is EngineErrorCode.EXPIRED:
        return expired()
    return RequestError(ErrorCode(error.code.value), error.message)


def expired() -> RequestError:
    return RequestError(ErrorCode.EXPIRED, "not started within ttl_ms", "ttl_ms")
