"""Whether two answers to one request are the same, and where they part.

Pure. Knows nothing of the model: whether a difference is one of rounding is `drift`'s to say, and
what an earlier turn of a conversation does to a later one is `judging`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.deploy.replaying.answer import Answer
from headrace.schemas.errors import ErrorCode
from headrace.schemas.request import DecodedRequest, GenerationRequest

AROUND_CHARS = 24
"""Of each text, on either side of the point where they part."""

GREEDY_BELOW_TEMPERATURE = 1e-5
"""As the sampler has it: the seed decides nothing then."""

TextsOf = Callable[[Sequence[int]], Sequence[str]]
"""The text that each of some tokens adds."""


class Outcome(StrEnum):
    """What a comparison comes to."""

    EXACT = "exact"
    """The same tokens, as far as they can be told, and the same end."""
    DRIFT = "numeric drift"
    """They part where two tokens were as good as equally likely."""
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"
    """The recording does not say what the answer should be."""


class Reason(StrEnum):
    """Why two answers are different, or cannot be compared."""

    TOKENS = "other tokens"
    END = "another end"
    PROMPT = "another prompt"
    ERROR = "error"
    UNANSWERED = "no answer"
    NOT_RECORDED = "no recorded answer"
    NOT_FINISHED = "recorded answer without end"
    EXPIRED = "expired"
    CANCELLED = "cancelled before its first token"
    HISTORY = "the conversation before it is missing"
    EARLIER_TURN = "an earlier turn is another"
    SEED = "another seed"
    MODEL_NAME = "recorded worker served another model"


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two answers part: the number of the first token that differs, counted from 0, and the
    text of both around it.
    """

    token: int
    recorded: str
    answered: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one request. `detail` is for people."""

    outcome: Outcome
    reason: Reason | None = None
    detail: str = ""
    parting: Parting | None = None


EXACT = Verdict(Outcome.EXACT)


def compare(
    asked: DecodedRequest, recorded: Answer | None, answered: Answer | None, texts_of: TextsOf
) -> Verdict:
    """The verdict on one request, by itself."""
    if recorded is None:
        return _incomparable(Reason.NOT_RECORDED)
    if not recorded.finished:
        return _incomparable(Reason.NOT_FINISHED)
    if recorded.error_code == ErrorCode.EXPIRED:
        return _incomparable(Reason.EXPIRED)
    if answered is None or not answered.finished:
        return Verdict(Outcome.DIFFERENT, Reason.UNANSWERED)
    if recorded.error_code or answered.error_code:
        return _compare_errors(asked, recorded, answered)
    return _compare_completed(asked, recorded, answered, texts_of)


def uses_history(asked: DecodedRequest) -> bool:
    """Whether the prompt is put behind a stored conversation."""
    request = asked.request
    if request is None:
        return False
    return (request.context or ("append" if asked.named_session else "replace")) == "append"


def _incomparable(reason: Reason, detail: str = "") -> Verdict:
    return Verdict(Outcome.NOT_COMPARABLE, reason, detail)


_OF_THE_HISTORY = {ErrorCode.SESSION_OUT_OF_SYNC, ErrorCode.CONTEXT_LENGTH_EXCEEDED}


def _compare_errors(asked: DecodedRequest, recorded: Answer, answered: Answer) -> Verdict:
    was, is_now = recorded.error_code, answered.error_code
    if was == is_now:
        return EXACT
    detail = f"{was or 'completed'} -> {is_now or 'completed'}"
    if is_now == ErrorCode.EXPIRED:
        return _incomparable(Reason.EXPIRED, detail)
    if was == ErrorCode.MODEL_NOT_FOUND:
        return _incomparable(Reason.MODEL_NAME, detail)
    if uses_history(asked) and _OF_THE_HISTORY & {was, is_now}:
        return _incomparable(Reason.HISTORY, detail)
    return Verdict(Outcome.DIFFERENT, Reason.ERROR, detail)


def _compare_completed(
    asked: DecodedRequest, recorded: Answer, answered: Answer, texts_of: TextsOf
) -> Verdict:
    if recorded.finish_reason == "cancelled" and not recorded.completion_tokens:
        return _incomparable(Reason.CANCELLED)
    if _prompts_differ(recorded, answered):
        detail = _prompts_text(recorded, answered)
        if uses_history(asked):
            return _incomparable(Reason.HISTORY, detail)
        return Verdict(Outcome.DIFFERENT, Reason.PROMPT, detail)
    if is_sampled(asked.request) and recorded.seed != answered.seed:
        return _incomparable(Reason.SEED, f"{recorded.seed} -> {answered.seed}")
    token = _first_differing(recorded, answered, texts_of)
    if token is not None:
        return Verdict(
            Outcome.DIFFERENT, Reason.TOKENS, parting=_parting(token, recorded, answered)
        )
    return _compare_ends(recorded, answered)


def is_sampled(request: GenerationRequest | None) -> bool:
    """Whether the seed has a say in the answer."""
    return request is not None and request.temperature >= GREEDY_BELOW_TEMPERATURE


def _prompts_differ(recorded: Answer, answered: Answer) -> bool:
    if recorded.prompt_ids is not None and answered.prompt_ids is not None:
        return recorded.prompt_ids != answered.prompt_ids
    return recorded.prompt_tokens != answered.prompt_tokens


def _prompts_text(recorded: Answer, answered: Answer) -> str:
    was, is_now = recorded.prompt_tokens, answered.prompt_tokens
    if was == is_now:
        return f"{was} prompt tokens: same length, other tokens"
    return f"{was} -> {is_now} prompt tokens"


def _compare_ends(recorded: Answer, answered: Answer) -> Verdict:
    ends = (recorded.finish_reason, answered.finish_reason)
    if "cancelled" in ends:  # what there is of the shorter one was compared
        return EXACT
    counts = (recorded.completion_tokens, answered.completion_tokens)
    if ends[0] == ends[1] and counts[0] == counts[1]:
        return EXACT
    detail = f"{ends[0]} after {counts[0]} tokens -> {ends[1]} after {counts[1]}"
    token = min(count or 0 for count in counts)
    return Verdict(
        Outcome.DIFFERENT, Reason.END, detail, parting=_parting(token, recorded, answered)
    )


def _first_differing(recorded: Answer, answered: Answer, texts_of: TextsOf) -> int | None:
    """The number of the first token that differs; None where there is none."""
    texts_part = _part_at(
        _whole_text(recorded), _whole_text(answered), *_cut_off(recorded, answered)
    )
    if recorded.ids is not None and answered.ids is not None:
        found = _part_at(recorded.ids, answered.ids, *_cut_off(recorded, answered))
        if found is not None or texts_part is None:
            return found
    if texts_part is None:
        return None
    if answered.ids is None:
        return texts_part  # no token is known: the character must do
    return token_at(texts_of(answered.ids), texts_part)


def _cut_off(recorded: Answer, answered: Answer) -> tuple[bool, bool]:
    return recorded.finish_reason == "cancelled", answered.finish_reason == "cancelled"


def _whole_text(answer: Answer) -> str:
    """Half a character at the end of what was cancelled is shown as U+FFFD: no text of it."""
    text = answer.text
    return text.rstrip("\ufffd") if answer.finish_reason == "cancelled" else text


def _part_at(
    recorded: Sequence[object], answered: Sequence[object], was_cut: bool, is_cut: bool
) -> int | None:
    """The first place where two series differ; one that was cut off may be the shorter."""
    common = common_length(recorded, answered)
    recorded_is_over, answered_is_over = common == len(recorded), common == len(answered)
    if recorded_is_over and (answered_is_over or was_cut):
        return None
    if answered_is_over and is_cut:
        return None
    return common


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading items are the same."""
    pairs = zip(one, other, strict=False)
    return next(
        (number for number, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other))
    )


def token_at(texts: Sequence[str], position: int) -> int:
    """The number of the first token whose text passes `position`, counted in characters. Where none
    does, the first behind the text: one without text that ended it, or the one that is missing.
    """
    end = 0
    last_with_text = -1
    for number, text in enumerate(texts):
        end += len(text)
        if end > position:
            return number
        if text:
            last_with_text = number
    return last_with_text + 1


def _parting(token: int, recorded: Answer, answered: Answer) -> Parting:
    at = common_length(recorded.text, answered.text)
    around = slice(max(0, at - AROUND_CHARS), at + AROUND_CHARS)
    return Parting(token, recorded.text[around], answered.text[around])
