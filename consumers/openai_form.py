"""Response events in the form of the OpenAI API. Sans I/O.

Our events are chat chunks with more fields, which OpenAI's clients ignore; what differs is usage,
text completions, whole answers, and a restarted attempt (contract §3), which those clients do not
know.
"""

from typing import Any

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.reply import Seen, event_text


class Restart:
    """Text that a client has, over attempts: it cannot forget, so a restart must say the same
    again.
    """

    def __init__(self) -> None:
        self._sent = ""
        self._attempt_text = ""

    def new_text(self, event: dict[str, Any], seen: Seen) -> str:
        """What the client does not have yet of `event`'s text.

        Raises: RequestError `internal_error` where a larger attempt says something else.
        """
        if seen is Seen.RESTART:
            self._attempt_text = ""
        self._attempt_text += event_text(event)
        have = min(len(self._sent), len(self._attempt_text))
        if self._sent[:have] != self._attempt_text[:have]:
            text = "the answer began anew and differs from what was sent"
            raise RequestError(ErrorCode.INTERNAL_ERROR, text)
        new = self._attempt_text[have:]
        self._sent += new
        return new


class ChunkForm:
    """Makes the chunks of one streamed answer."""

    def __init__(self, *, chat: bool, include_usage: bool) -> None:
        self._chat, self._include_usage = chat, include_usage
        self._text = Restart()

    def chunks(self, event: dict[str, Any], seen: Seen) -> list[dict[str, Any]]:
        """The chunks for an event that is no failure; the usage chunk comes last. Raises:
        RequestError.
        """
        new = self._text.new_text(event, seen)
        choice: dict[str, Any] = dict(event["choices"][0])
        delta = dict(choice.pop("delta", None) or choice.pop("message", {}))
        choice |= {"index": 0, "logprobs": None}
        choice |= {"delta": delta | {"content": new}} if self._chat else {"text": new}
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        body = event | {"object": kind, "choices": [choice]}
        usage = body.pop("usage", None)
        if not self._include_usage:
            return [body]
        last = [body | {"choices": [], "usage": usage}] if usage else []
        return [body | {"usage": None}, *last]


class WholeForm:
    """Makes the one body of an answer that is not streamed, from one event or from many."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._text = ""
        self._token_ids: list[int] = []
        self._prompt_ids: list[int] | None = None

    def take(self, event: dict[str, Any], seen: Seen) -> None:
        """Add an event that is no failure."""
        if seen is Seen.RESTART:
            self._text, self._token_ids, self._prompt_ids = "", [], None
        self._text += event_text(event)
        self._token_ids += event["choices"][0].get("token_ids") or []
        self._prompt_ids = event.get("prompt_token_ids", self._prompt_ids)

    def body(self, last: dict[str, Any]) -> dict[str, Any]:
        """The answer, whose last event is `last`."""
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": last["choices"][0]["finish_reason"],
        }
        if self._chat:
            choice["message"] = {"role": "assistant", "content": self._text, "refusal": None}
        else:
            choice["text"] = self._text
        if self._token_ids:
            choice["token_ids"] = self._token_ids
        kind = "chat.completion" if self._chat else "text_completion"
        body = last | {"object": kind, "choices": [choice]}
        return body if self._prompt_ids is None else body | {"prompt_token_ids": self._prompt_ids}
