"""One answer as a reader of the log has it: its text, its tokens and how it ended.

Pure. Applies the reader's rule of contract §3; does not know which of two answers it is.
"""

from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.reply import ReplyReader, Seen, event_text


@dataclass(slots=True)
class Answer:
    """The events of one request so far. `finished`: its last event is among them."""

    reader: ReplyReader = field(default_factory=ReplyReader)
    texts: list[str] = field(default_factory=list)
    ids: list[int] | None = None
    """The generated tokens; None where the events do not tell all of them."""
    prompt_ids: list[int] | None = None
    fingerprint: str = ""
    model: str = ""
    last: dict[str, Any] | None = None
    """What only the last event says."""

    @property
    def finished(self) -> bool:
        return self.last is not None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def error_code(self) -> str | None:
        """The code of an answer that failed."""
        if self.last is None or "error" not in self.last:
            return None
        return str(self.last["error"].get("code"))

    @property
    def finish_reason(self) -> str | None:
        return None if self.last is None else self.last.get("finish_reason")

    @property
    def seed(self) -> int | None:
        """The seed that was used."""
        return None if self.last is None else self.last.get("seed")

    @property
    def prompt_tokens(self) -> int | None:
        return self._usage("prompt_tokens")

    @property
    def completion_tokens(self) -> int | None:
        return self._usage("completion_tokens")

    @property
    def work_ms(self) -> float | None:
        """From the start of its prefill to its last token, as the worker measured it."""
        prefill_ms, decode_ms = self._timing("prefill_ms"), self._timing("decode_ms")
        if prefill_ms is None or decode_ms is None:
            return None
        return prefill_ms + decode_ms

    def see(self, event: dict[str, Any]) -> None:
        """Take the next event of the log; one seen before, or behind a gap, adds nothing."""
        seen = self.reader.see(event)
        if seen in (Seen.OLD, Seen.GAP):
            return
        if seen is Seen.RESTART:
            self.texts, self.ids, self.prompt_ids = [], None, None
        is_first = not self.texts
        self.texts.append(event_text(event))
        if event["object"] == "error":
            self.last = {"error": event["error"]}
            return
        choice = event["choices"][0]
        self._take_ids(choice.get("token_ids"), is_first=is_first)
        self.prompt_ids = event.get("prompt_token_ids", self.prompt_ids)
        self.fingerprint = str(event.get("system_fingerprint") or "")
        self.model = str(event.get("model") or "")
        if choice["finish_reason"] is not None:
            names = ("usage", "timings", "seed")
            self.last = {name: event.get(name) for name in names}
            self.last["finish_reason"] = choice["finish_reason"]

    def _take_ids(self, ids: Any, *, is_first: bool) -> None:
        if not isinstance(ids, list) or (self.ids is None and not is_first):
            self.ids = None
        else:
            self.ids = [*(self.ids or []), *ids]

    def _usage(self, name: str) -> int | None:
        usage = (self.last or {}).get("usage")
        return usage.get(name) if isinstance(usage, dict) else None

    def _timing(self, name: str) -> float | None:
        timings = (self.last or {}).get("timings")
        return timings.get(name) if isinstance(timings, dict) else None
