"""Conversations to token ids, through the tokenizer's own chat template.

It encodes whole conversations, or the next turn after ids that are kept as they were generated. It
does not know where conversations are stored, nor what the engine does with the ids.
"""

import bisect
import secrets
from collections.abc import Sequence
from typing import Any

from headrace.models.control_tokens import ControlTokenError, ControlTokens

Message = dict[str, Any]

_ANCHORS = ("\n", "x")


class ChatTemplateError(Exception):
    """The model's chat template cannot render these messages."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"chat template: {self.reason}"


class ContextLengthError(Exception):
    """The prompt does not fit, even after all that may be dropped was dropped."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(prompt_tokens, limit)
        self.prompt_tokens, self.limit = prompt_tokens, limit

    def __str__(self) -> str:
        return f"the prompt has {self.prompt_tokens} tokens, the limit is {self.limit}"


class ConversationEncoder:
    """Encodes messages and raw prompts for one tokenizer (one of transformers, backed by
    `tokenizers`).

    What looks like a control token in a message is encoded as text; in a raw prompt it is the
    token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._control = ControlTokens(tokenizer)
        self._sentinel = f"headrace{secrets.token_hex(16)}"

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Encode a whole conversation, up to where the assistant's next message begins.

        Raises: ChatTemplateError if the template refuses the messages, or there is none.
        """
        return self._encode(self._render(self._control.mask(list(messages))))

    def encode_prompt(self, text: str) -> list[int]:
        """Encode raw text to complete; BOS or not is the tokenizer's own default."""
        ids: list[int] = self._tokenizer(text, verbose=False)["input_ids"]
        return ids

    def extend(
        self,
        history_messages: Sequence[Message],
        history_ids: Sequence[int],
        new_messages: Sequence[Message],
    ) -> list[int]:
        """Encode only what follows a stored conversation and put it after its ids, which are kept
        as they are.

        `history_messages` ends with the assistant's message, and `history_ids` with the tokens of
        it, with or without its end-of-turn token.

        Raises: ValueError if the last message is not the assistant's; ChatTemplateError as
            `encode_messages`, and where the template changes the assistant's message so that its
            end cannot be found.
        """
        if not history_messages or history_messages[-1].get("role") != "assistant":
            raise ValueError("a stored conversation must end with an assistant message")
        last = {**history_messages[-1], "content": self._sentinel}
        rendered = self._render(
            [*history_messages[:-1], last, *self._control.mask(list(new_messages))]
        )
        _, *tails = rendered.split(self._sentinel)
        if len(tails) != 1:
            raise ChatTemplateError("the end of the assistant's message cannot be found in it")
        return [
            *history_ids,
            *self._without_repeated_end(history_ids, self._encode_after_text(tails[0])),
        ]

    def extend_prompt(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Put raw text after the ids of a stored completion."""
        return [*history_ids, *self._encode_after_text(text)]

    def fit(
        self, messages: Sequence[Message], limit_tokens: int
    ) -> tuple[list[Message], list[int]]:
        """Drop the oldest turns until the conversation has at most `limit_tokens`; return what is
        left and its ids.

        A turn is a user message and all that follows it up to the next one. System messages at the
        beginning and the last turn always stay.

        Raises: ContextLengthError if these alone are too long; ChatTemplateError as
            `encode_messages`.
        """
        system, turns = _split_turns(messages)

        def keep_after(num_dropped: int) -> list[Message]:
            return [*system, *(message for turn in turns[num_dropped:] for message in turn)]

        def fits(num_dropped: int) -> bool:
            return len(self.encode_messages(keep_after(num_dropped))) <= limit_tokens

        # NOTE: the last turn is never dropped, so the search is over 0 ... len(turns) - 1
        max_dropped = max(len(turns) - 1, 0)
        kept = keep_after(bisect.bisect_left(range(max_dropped), True, key=fits))
        ids = self.encode_messages(kept)
        if len(ids) > limit_tokens:
            raise ContextLengthError(len(ids), limit_tokens)
        return kept, ids

    def _render(self, messages: list[Message]) -> str:
        if not self._tokenizer.chat_template:
            raise ChatTemplateError("this model has none; send a prompt instead of messages")
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # the template is a program that came with the model
            raise ChatTemplateError(str(error) or type(error).__name__) from error
        return rendered

    def _encode(self, rendered: str) -> list[int]:
        try:
            return self._control.encode(rendered)
        except ControlTokenError as error:
            raise ChatTemplateError(str(error)) from error

    def _encode_after_text(self, text: str) -> list[int]:
        """Encode a text that goes on after another, so that no tokenizer puts a space before it."""
        for anchor in _ANCHORS:
            anchor_ids, ids = self._encode(anchor), self._encode(anchor + text)
            if ids[: len(anchor_ids)] == anchor_ids:
                return ids[len(anchor_ids) :]
        return self._encode(text)

    def _without_repeated_end(self, history_ids: Sequence[int], tail_ids: list[int]) -> list[int]:
        """Cut from the tail the end of turn that the model has generated itself."""
        for index, token_id in enumerate(tail_ids):
            if token_id in self._control.ids:
                generated_it = bool(history_ids) and history_ids[-1] == token_id
                return tail_ids[index + 1 :] if generated_it else tail_ids
        return tail_ids


def _split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Split into the system messages at the beginning and the turns, each beginning with a user
    message.
    """
    num_system = next(
        (
            index
            for index, message in enumerate(messages)
            if message.get("role") not in ("system", "developer")
        ),
        len(messages),
    )
    turns: list[list[Message]] = []
    seen_user = False
    for message in messages[num_system:]:
        is_user = message.get("role") == "user"
        if not turns or (is_user and seen_user):
            turns.append([])
        turns[-1].append(message)
        seen_user = seen_user or is_user
    return list(messages[:num_system]), turns
